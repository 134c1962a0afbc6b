"""What Kueue stores, as far as it is read and written here (`assignment`), and how it is named (`names`)."""
