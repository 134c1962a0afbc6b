"""What pods of jobs meet: nodes as the scheduler believes in them, their kubelets, and placing by count."""
