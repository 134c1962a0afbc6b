"""Which devices of a machine go to a pod: GPUs by their links, XPUs by the tasks that still fill the machine."""
