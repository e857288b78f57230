"""The base of all records, and the records that the primary and the replicas share."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field

from aiperf_hpc.run.clocks import Clocks, Time
from aiperf_hpc.system.description import RankDescription
from aiperf_hpc.trial import Value
from aiperf_hpc.untrusted.bounds import Count

TIME_OVER = "the run's time is over"
"""The reason for which a run and its replicas end after the requested runtime."""
TRAININGS_DONE = "the trainings that were asked for are done"
"""The reason for which a replica ends after the requested training runs, and the run with the
last."""

Duration = Annotated[Time, Field(ge=0)]

ClockStarts = Literal["now", "first", "all"]
"""The event that starts a run's clock: its primary starts, its first replica's node is granted, or
all replicas are ready to train (docs/decisions/clock.md)."""


class Event(Value):
    """Base of what can be recorded, whose type is its class's name in snake case."""

    type: str = ""

    def __init_subclass__(cls) -> None:
        if "type" not in cls.__annotations__:
            name = re.sub("(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
            cls.__annotations__["type"] = Literal[name]
            cls.type = name


class FileProblem(Event):
    """A file that is read back is damaged or missing, and how the writer continued without it.

    Written by a replica's trainer and by the primary, which reports a replica's missing journals.
    """

    file: str
    """The file's path below the run directory."""
    problem: str
    remedy: str


class StorageWaited(Event):
    """The end of a time in which the writer waited for storage that was full or unavailable."""

    started_utc: Time
    seconds: Duration
    reason: str
    """The operation that failed, and the error of the storage."""


class SystemDescribed(Event):
    """The description of a rank or of the primary; that of a host's first rank includes the node.

    A replica's first rank writes the records of all ranks.
    """

    rank: Count | None
    """The number of the rank; None for the primary."""
    description: RankDescription


class ClocksRead(Event):
    """The clocks of the writer's host: at the start of the process, every hour and at its end."""

    clocks: Clocks
