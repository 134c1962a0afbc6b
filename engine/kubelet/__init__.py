"""One pod on one machine, exactly as its kubelet would admit it: hints, CPU manager, memory manager, devices."""
