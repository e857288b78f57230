"""What is trained: a file or a folder for each workload, and their registry."""
