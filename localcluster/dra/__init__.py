"""A stand-in for DRA drivers: ResourceSlices for the devices of simulated machines, and DeviceClasses for them.

What NVIDIA's driver (``gpu.nvidia.com``) and dranet (``dra.net``) publish, without preparing anything: the stock
kube-scheduler allocates, and an allocated claim is all that a simulated pod needs.
"""
