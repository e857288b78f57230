"""SLURM: the batch script, the clients and the launchers."""
