"""What makes pods, one module a kind: each gives the same view of a job."""
