"""Topogate's components as processes.

1. `commands` has ``topogate webhook``, ``ungater`` and ``agent``: they read and check settings.
2. Then the process starts again as `component`, which imports little; its table has a row for each component.

`components` starts them beside a local cluster, each under its own service account.
"""
