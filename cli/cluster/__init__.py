"""A cluster as the controller knows it, for commands: read once, and asked with the controller's own code.

1. `cluster_snapshot` reads the live cluster; `dump` reads files of ``topogate snapshot`` or ``kubectl get``.
2. `installed` has the settings of the installation there, so that a command decides as the controller does.
3. `cluster_snapshot.cache_of` makes the controller's cache of it, as after a restart; `live_queues` the queues alone.
4. `manifests` turns files of a user into Jobs and pods; `dry_run` plays them on the cache.
5. `required_evictions`, `room_report`, `holders` and `claimed_devices` answer questions of several commands.
"""
