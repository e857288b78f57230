"""The SLURM batch script: a pure function of the run and the site's template."""

from __future__ import annotations

import math
import shlex
import string
import sys
from importlib import resources
from pathlib import Path

from aiperf_hpc.config import ReplicaConfig, SlurmConfig
from aiperf_hpc.errors import UNSEEN_PYTHON_STATUS, UNSEEN_RUN_STATUS, ConfigError, restated
from aiperf_hpc.primary.launchers.base import WaitLimit
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths

NEEDED = ("last_replica", "run_dir")
"""Placeholders that a template must contain to run the replicas."""


def batch_script(manifest: RunManifest, paths: RunPaths, launch: int = 0) -> str:
    """Return the script of a job array, in which element N is the replica rN.

    Args:
        manifest: manifest of the run.
        paths: paths of the run directory; nothing is written here.
        launch: number of previous launches of these replicas.

    Raises:
        ConfigError: the template cannot be read or filled in, or the run directory's name has
            characters that SLURM cannot pass on.
    """
    slurm, replica = manifest.config.slurm, manifest.config.replica
    root = str(paths.root)
    if set(root) & set("\\\n\r"):
        raise ConfigError(f"the run directory {root!r} has characters that SLURM changes")
    # SLURM replaces %a by the element's number, and %% by a percent sign.
    log = str(RunPaths(Path(root.replace("%", "%%"))).replica_log("r%a"))
    values = {
        "job_name": job_name(manifest),
        "last_replica": str(manifest.replicas - 1),
        "nodes": str(replica.nodes),
        "ranks_per_node": str(replica.ranks_per_node),
        "time_limit": str(time_limit_minutes(manifest.hours, slurm)),
        "signal_seconds": str(slurm.signal_seconds),
        "output": shlex.quote(log),
        "directives": "\n".join(f"#SBATCH {option}" for option in job_options(slurm)),
        "step_options": " ".join(rank_options(slurm, replica)),
        "python": shlex.quote(sys.executable),
        "run_dir": shlex.quote(root),
        "launch": str(launch),
        "unseen_run_status": str(UNSEEN_RUN_STATUS),
        "unseen_python_status": str(UNSEEN_PYTHON_STATUS),
    }
    return _fill(_template(slurm), values, str(slurm.template or "the batch script template"))


def job_name(manifest: RunManifest) -> str:
    """Return the unique name of a run's job."""
    return f"aiperf-{manifest.run_id}"


def time_limit_minutes(hours: float, slurm: SlurmConfig) -> int:
    """Return the job's time limit: the run's duration plus the margin."""
    return math.ceil(hours * 60.0) + slurm.time_margin_minutes


def wait_limit(slurm: SlurmConfig) -> WaitLimit:
    """Return the maximum wait of a node for others before its time limit truncates the run."""
    # SLURM sends the signal up to a minute early.
    seconds = slurm.time_margin_minutes * 60.0 - slurm.signal_seconds - 60.0
    return WaitLimit(seconds, "slurm.time_margin_minutes")


def job_options(slurm: SlurmConfig) -> list[str]:
    """Return the options of sbatch and salloc that request a job."""
    options = _options(
        slurm, "partition", "account", "qos", "gres", "cpus_per_task", "memory", "constraint",
        "reservation",
    )  # fmt: skip
    return [*options, *(["--exclusive"] if slurm.exclusive else []), *slurm.extra_directives]


def group_options(slurm: SlurmConfig) -> list[str]:
    """Return the options of a node group's job that override the batch script's options."""
    return _options(slurm, "partition", "gres", "constraint")


def _options(slurm: SlurmConfig, *settings: str) -> list[str]:
    values = {name: getattr(slurm, name) for name in settings}
    names = {"memory": "mem", "cpus_per_task": "cpus-per-task"}
    return [f"--{names.get(n, n)}={v}" for n, v in values.items() if v is not None]


def rank_options(slurm: SlurmConfig, replica: ReplicaConfig) -> list[str]:
    """Return the srun options for the ranks of a replica."""
    cpus = [f"--cpus-per-task={slurm.cpus_per_task}"] if slurm.cpus_per_task else []
    if replica.ranks == 1:
        return cpus
    # Torch's ranks rendezvous by SLURM's variables; Horovod's by the MPI that it is built with.
    mpi = [] if replica.collective == "torch" else [f"--mpi={slurm.mpi}"]
    # Otherwise ranks would wait for a failed rank until the time limit.
    return [*cpus, *mpi, "--kill-on-bad-exit=1"]


def _template(slurm: SlurmConfig) -> str:
    if slurm.template is None:
        return (resources.files("aiperf_hpc.deploy") / "slurm_array.sh").read_text("utf-8")
    with restated(f"cannot read slurm.template {slurm.template}", ConfigError):
        return slurm.template.read_text("utf-8")


def _fill(text: str, values: dict[str, str], where: str) -> str:
    template = string.Template(text)
    if not template.is_valid():
        raise ConfigError(
            f"{where}: a dollar sign without a name; write $$ for a literal dollar sign"
        )
    used = set(template.get_identifiers())
    if unknown := sorted(used - values.keys()):
        raise ConfigError(
            f"{where}: unknown name ${unknown[0]}; write $$ for a literal dollar sign; "
            f"known are {', '.join(values)}"
        )
    if missing := [name for name in NEEDED if name not in used]:
        raise ConfigError(f"{where}: it does not use ${missing[0]}, which every template requires")
    return template.substitute(values)
