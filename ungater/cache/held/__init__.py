"""What is held, for whom: admissions, what their pods take of nodes, and pods that run on without one."""
