"""What is asked of SLURM."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from aiperf_hpc.config.section import Section
from aiperf_hpc.untrusted.bounds import MOST_NODES, in_words

_WORD = in_words(
    r"^[^\s'\"\\`$]+$", "one word that no shell would change, without spaces, quotes, '\\' and '$'"
)
Word = Annotated[str, Field(pattern=_WORD, max_length=256)]
"""A value for SLURM's command line: one word that no shell would change."""
_DIRECTIVE = in_words(r"^-[^\r\n]*$", "an option of sbatch on one line, with '-' first")
Directive = Annotated[str, Field(pattern=_DIRECTIVE, max_length=1024)]
_MEMORY = in_words(r"^\d+[KMGT]?$", "a whole number, with K, M, G or T after it, e.g. 64G")


class SlurmNodeGroup(Section):
    """Nodes of one kind, of several that a run has. What is not given is the section's."""

    partition: Word = Field(description="as sbatch takes it")
    nodes: int = Field(ge=1, le=MOST_NODES, description="how many of --nodes")
    gres: Word | None = Field(None, description="a node's accelerators, e.g. gpu:h100:8")
    constraint: Word | None = Field(None, description="features of the nodes, e.g. icelake")


class SlurmConfig(Section):
    """What is asked of SLURM. What is not given is left to the site's defaults."""

    mode: Literal["array", "allocation"] = Field(
        "array", description="a job for each replica, or one job with a step for each"
    )
    client: Literal["commands", "pyslurm"] = Field(
        "commands", description="how SLURM is looked at; pyslurm is a site's own build"
    )
    partition: Word | None = Field(None, description="as sbatch takes it")
    account: Word | None = Field(None, description="as sbatch takes it")
    qos: Word | None = Field(None, description="quality of service, as sbatch takes it")
    gres: Word | None = Field(None, description="a node's accelerators, e.g. gpu:8 or gpu:h100:8")
    cpus_per_task: int | None = Field(None, ge=1, le=65_536, description="CPUs a rank")
    memory: Annotated[str, Field(pattern=_MEMORY)] | None = Field(
        None, description="memory a node, e.g. 64G; 0 is all of it"
    )
    constraint: Word | None = Field(None, description="features of the nodes, e.g. icelake")
    node_groups: tuple[SlurmNodeGroup, ...] = Field(
        (),
        max_length=64,
        description="nodes of several kinds: partition and nodes of each, gres and constraint",
    )
    reservation: Word | None = Field(None, description="as sbatch takes it")
    exclusive: bool = Field(True, description="whether a replica has its node to itself")
    time_margin_minutes: int = Field(
        10, ge=2, le=1440, description="time limit beyond the run's hours, for start and end"
    )
    signal_seconds: int = Field(
        120, ge=10, le=3600, description="before the time limit, when replicas are told to end"
    )
    mpi: Word = Field("pmix", description="what srun starts ranks by: see srun --mpi=list")
    template: Path | None = Field(None, description="the site's own batch script")
    extra: tuple[Directive, ...] = Field((), description="more directives, e.g. --nice=100")

    @model_validator(mode="after")
    def _ends_before_it_is_told_to(self) -> SlurmConfig:
        # SLURM sends the signal up to a minute early.
        if self.time_margin_minutes * 60 < self.signal_seconds + 60:
            raise ValueError(
                f"time_margin_minutes {self.time_margin_minutes} is shorter than signal_seconds "
                f"{self.signal_seconds} and a minute: runs would be cut; raise the margin"
            )
        return self

    @model_validator(mode="after")
    def _tells_its_groups_apart(self) -> SlurmConfig:
        # A job is told by what it was asked for when a primary takes a run in hand again.
        asked = [(each.partition, each.gres, each.constraint) for each in self.node_groups]
        for number, each in enumerate(asked):
            if each in asked[:number]:
                raise ValueError(
                    f"node_groups.{asked.index(each)} and node_groups.{number} ask for the same "
                    "nodes; put them together"
                )
        return self

    def of_group(self, group: SlurmNodeGroup) -> SlurmConfig:
        """Return what is asked of SLURM for the nodes of one group."""
        own = {"gres": group.gres, "constraint": group.constraint}
        given = {name: value for name, value in own.items() if value is not None}
        update = {"partition": group.partition, "node_groups": (), **given}
        return self.model_copy(update=update)
