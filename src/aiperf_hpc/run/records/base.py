"""What the primary and the replicas both record, and the base of all records."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from aiperf_hpc.run.clocks import Clocks, Time
from aiperf_hpc.run.storage import Wait
from aiperf_hpc.system.description import RankDescription
from aiperf_hpc.trial import (
    Value,
)
from aiperf_hpc.untrusted.bounds import (
    Count,
)

TIME_OVER = "the run's time is over"
"""Why a run and its replicas end once it has lasted as long as it was to."""
TRAININGS_DONE = "the trainings that were asked for are done"
"""Why a replica ends that has trained as often as it was to, and the run with the last of them."""

Duration = Annotated[Time, Field(ge=0)]

ClockStarts = Literal["now", "first", "all"]
"""What starts the clock of a run: that a primary takes it in hand, that the first replica's node is
granted, or that all replicas are ready to train (docs/decisions/clock.md)."""


class Event(Value):
    """Base of what can be recorded."""

    type: str


class FileProblem(Event):
    """A file that is read back is damaged or gone, and what was done without it.

    A replica's trainer writes it, and the primary. What the primary says of a file of a replica is
    that a journal is gone.
    """

    type: Literal["file_problem"] = "file_problem"
    file: str
    """The file's path below the run directory."""
    problem: str
    remedy: str


class StorageWaited(Event):
    """Its writer waited for storage that was full or away, and no longer does."""

    type: Literal["storage_waited"] = "storage_waited"
    began_utc: Time
    seconds: Duration
    why: str
    """What could not be done, and what storage answered."""

    @classmethod
    def of(cls, wait: Wait) -> StorageWaited:
        return cls(began_utc=wait.began_utc, seconds=wait.seconds, why=wait.why)


class SystemDescribed(Event):
    """What a rank is and runs on, or the primary; the first rank of each host tells of the node.

    A replica's first rank writes it for all of them.
    """

    type: Literal["system_described"] = "system_described"
    rank: Count | None
    """The number of the rank; None for the primary."""
    description: RankDescription


class ClocksRead(Event):
    """The clocks of its writer's host: at the process's start, every hour, and at its end."""

    type: Literal["clocks_read"] = "clocks_read"
    clocks: Clocks
