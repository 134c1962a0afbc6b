"""How many pods the kubelets of many machines would admit, without asking each."""
