"""The environment of SLURM's commands, and the exit statuses that SLURM itself gives."""

from __future__ import annotations

import os

SHELL_SIGNAL = 128
"""srun ends with this and the number of the signal that ended its task, as shells do."""
NO_OUTPUT = (0, 53)
"""Status and signal of a job whose output file its node could not open."""
SITE_VARIABLES = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT")
"""The variables that are a site's or a user's, and not of one job."""


def outside_of_a_job() -> dict[str, str]:
    """Return this process's environment without what the job that it is in says of itself."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("SLURM_") or name in SITE_VARIABLES
    }


def with_epoch_times() -> dict[str, str]:
    """Return the environment in which squeue and sacct tell times as seconds since 1970."""
    return {**os.environ, "SLURM_TIME_FORMAT": "%s"}
