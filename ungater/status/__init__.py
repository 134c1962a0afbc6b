"""The status of queues and flavors."""
