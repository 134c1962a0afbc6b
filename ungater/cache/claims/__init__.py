"""What the claims of pods say: which devices and volumes pods ask for, what is counted of them, and whose turn it is.

1. `known_claims` reads resource claims as they are. `device_turns` knows who names which, and whose turn it is where
   one has no devices yet.
2. `device_claims` says whether a workload waits for claims or classes, and `claimed_devices` what its pods are counted
   for; `device_quota` says what they take of a queue.
3. `volume_claims` looks up what the volume claims of a job say, and `pod_volumes` where its pods may go for them.

`ungater.cache.devices` and `ungater.cache.volumes` take the events.
"""
