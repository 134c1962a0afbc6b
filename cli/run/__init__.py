"""Topogate's components as processes.

1. `webhook`, `ungater` and `agent` are the commands: they read and check settings.
2. `becoming` starts the process anew as `webhook_process`, `ungater_process` or `agent_process`, which import little;
   `plain_settings` are the settings there.

`components` starts them beside a local cluster, each under its own service account.
"""
