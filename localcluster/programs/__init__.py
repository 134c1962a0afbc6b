"""The programs of the control plane: found, or built from their Go modules."""
