"""Whether the devices of pods' claims come from the NUMA zones that their kubelets give them: two parties, foreseen."""
