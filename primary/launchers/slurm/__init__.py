"""SLURM: the batch script, its clients, and the launcher that uses them."""
