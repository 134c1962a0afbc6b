"""What is to be done for one workload: pure functions of its entry and what holds for all."""
