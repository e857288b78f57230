"""The SLURM section of the configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from aiperf_hpc.config.section import Section
from aiperf_hpc.untrusted.bounds import MOST_NODES, in_words

_WORD = in_words(r"^[^\s'\"\\`$]+$", "one word without spaces, quotes, '`', '\\' or '$'")
Word = Annotated[str, Field(pattern=_WORD, max_length=256)]
"""A value for SLURM's command line: one word that no shell would change."""
_DIRECTIVE = in_words(r"^-[^\r\n]*$", "one option of sbatch, beginning with '-'")
Directive = Annotated[str, Field(pattern=_DIRECTIVE, max_length=1024)]
_MEMORY = in_words(r"^\d+[KMGT]?$", "a whole number, optionally followed by K, M, G or T, e.g. 64G")


class SlurmNodeGroup(Section):
    """Group of nodes of one kind. Omitted settings default to those of the section."""

    partition: Word
    """Partition (sbatch --partition)."""
    nodes: int = Field(ge=1, le=MOST_NODES)
    """Number of nodes of this group, out of --nodes."""
    gres: Word | None = None
    """Generic resources per node, for example gpu:h100:8."""
    constraint: Word | None = None
    """Required node features, for example icelake."""


class SlurmConfig(Section):
    """Resource requests and submission. Omitted settings use the site's defaults."""

    mode: Literal["array", "allocation"] = "array"
    """How to submit replicas: one job per replica (array), or one job with a step for each
    (allocation)."""
    client: Literal["commands", "pyslurm"] = "commands"
    """Interface to SLURM: its commands, or pyslurm, which a site must build for its SLURM
    version."""
    partition: Word | None = None
    """Partition (sbatch --partition)."""
    account: Word | None = None
    """Account (sbatch --account)."""
    qos: Word | None = None
    """Quality of service (sbatch --qos)."""
    gres: Word | None = None
    """Generic resources per node, for example gpu:8 or gpu:h100:8."""
    cpus_per_task: int | None = Field(None, ge=1, le=65_536)
    """CPUs per rank."""
    memory: Annotated[str, Field(pattern=_MEMORY)] | None = None
    """Memory per node, for example 64G; 0 requests all of it."""
    constraint: Word | None = None
    """Required node features, for example icelake."""
    node_groups: tuple[SlurmNodeGroup, ...] = Field((), max_length=64)
    """Groups of nodes of different kinds, each with its partition, number of nodes, gres and
    constraint."""
    reservation: Word | None = None
    """Reservation (sbatch --reservation)."""
    exclusive: bool = True
    """Allocate whole nodes to a replica."""
    time_margin_minutes: int = Field(10, ge=2, le=1440)
    """Minutes added to the duration of the run to get the time limit of the jobs."""
    signal_seconds: int = Field(120, ge=10, le=3600)
    """Number of seconds before the time limit at which replicas receive the signal to shut down."""
    mpi: Word = "pmix"
    """MPI plugin with which srun starts ranks; `srun --mpi=list` lists them."""
    template: Path | None = None
    """Path of a custom batch script template."""
    extra_directives: tuple[Directive, ...] = ()
    """Additional sbatch options, for example --nice=100."""

    @model_validator(mode="after")
    def _ends_before_it_is_told_to(self) -> SlurmConfig:
        # SLURM sends the signal up to a minute early.
        if self.time_margin_minutes * 60 < self.signal_seconds + 60:
            raise ValueError(
                f"time_margin_minutes {self.time_margin_minutes} is shorter than signal_seconds "
                f"{self.signal_seconds} and a minute: runs would be cut off; raise the margin"
            )
        return self

    @model_validator(mode="after")
    def _tells_its_groups_apart(self) -> SlurmConfig:
        # A primary that resumes a run identifies jobs by their requested resources.
        asked = [(each.partition, each.gres, each.constraint) for each in self.node_groups]
        for number, each in enumerate(asked):
            if each in asked[:number]:
                raise ValueError(
                    f"node_groups.{asked.index(each)} and node_groups.{number} request the same "
                    "nodes; merge them"
                )
        return self

    def of_group(self, group: SlurmNodeGroup) -> SlurmConfig:
        """Return the requests for the nodes of one group."""
        given = group.model_dump(exclude={"nodes"}, exclude_none=True)
        return self.model_copy(update={**given, "node_groups": ()})
