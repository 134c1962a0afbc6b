"""Which of equally many nodes align pods best inside."""
