"""What Kueue stores, as far as it is read and written here: `crds.kueue.assignment`."""
