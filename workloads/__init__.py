"""What is trained: a file for each workload, their networks, and their registry."""
