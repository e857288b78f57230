"""What is trained: a file for each workload, and their registry."""
