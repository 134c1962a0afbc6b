"""A machine's hardware: what sysfs and NVML tell of it."""
