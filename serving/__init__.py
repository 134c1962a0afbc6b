"""Health, readiness and metrics of a component, and the settings that change while it runs.

1. `server` opens the ports. Anybody may ask whether the component is healthy.
2. Where metrics are authenticated, `access` asks the API server (`reviews`) whether the bearer of a token may read
   them.
3. `live_settings` looks at the ConfigMap every few seconds, and tells the component of changes.
"""
