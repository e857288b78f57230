"""The records of a run's journals.

Each record has the UTC time and the monotonic time of the host that wrote it, in seconds, and
its number within its file. Journals are append-only: a record is never changed.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, TypeAdapter

from aiperf_hpc.run.records.base import *  # noqa: F403 -- the records are one vocabulary
from aiperf_hpc.run.records.base import Event
from aiperf_hpc.run.records.primary import *  # noqa: F403
from aiperf_hpc.run.records.replica import *  # noqa: F403
from aiperf_hpc.run.records.search import *  # noqa: F403
from aiperf_hpc.run.records.trials import *  # noqa: F403
from aiperf_hpc.trial import Value
from aiperf_hpc.untrusted.bounds import Count, Finite, Utc

if TYPE_CHECKING:
    AnyEvent = Event
else:
    AnyEvent = Annotated[reduce(or_, Event.__subclasses__()), Field(discriminator="type")]
    """Any of the events; ``type`` tells them apart."""


class Record(Value):
    """One line of a journal."""

    v: Literal[1, 2] = 2
    """Version of the format; earlier names of version 1 are read by ``records/parsing.py``."""
    seq: Count
    utc: Utc
    mono: Finite
    event: AnyEvent


RECORD: TypeAdapter[Record] = TypeAdapter(Record)
