"""The records that come by the million, read in a fifth of the time that their models take.

A large run's journals are progress and heartbeats, nearly all of them. What is decoded here is what
the model of a record accepts, with the same values, and any other line is left to the model: it may
accept more, such as a number in quotes, and it says what is wrong with what is no record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

import msgspec

from aiperf_hpc.run.records import RECORD, Heartbeat, Record
from aiperf_hpc.trial import TimePhase
from aiperf_hpc.untrusted.bounds import LARGEST, LATEST_UTC, MOST_COUNT

_Count = Annotated[int, msgspec.Meta(ge=0, le=MOST_COUNT)]
_Number = Annotated[int, msgspec.Meta(ge=1, le=MOST_COUNT)]
_Time = Annotated[float, msgspec.Meta(ge=-LARGEST, le=LARGEST)]
_Utc = Annotated[float, msgspec.Meta(ge=0.0, le=LATEST_UTC)]


class FrequentProgress(msgspec.Struct, tag="progress", frozen=True, forbid_unknown_fields=True):
    """What ``records.Progress`` says."""

    trial: str
    epoch: _Number
    train_samples: _Count
    validation_samples: _Count


class FrequentHeartbeat(msgspec.Struct, tag="heartbeat", frozen=True, forbid_unknown_fields=True):
    """What ``records.Heartbeat`` says."""

    phase: TimePhase
    cpu_percent: float
    memory_bytes: _Count
    storage_wait_seconds: _Time = 0.0
    storage_waiting: str = ""

    def model(self) -> Heartbeat:
        """Return it as all other records are."""
        return Heartbeat.model_validate(msgspec.structs.asdict(self))


class FrequentRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a ``records.Record`` of one of these says."""

    seq: _Count
    utc: _Utc
    mono: _Time
    event: FrequentProgress | FrequentHeartbeat
    v: Literal[1] = 1


AnyRecord = Record | FrequentRecord

model_of: Callable[[bytes], Record] = RECORD.validator.validate_json
"""The parser of a line, without the options that a TypeAdapter passes on: a large run has
millions."""
_frequent = msgspec.json.Decoder(FrequentRecord).decode
_NOT_FREQUENT = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def parsed(line: bytes) -> AnyRecord:
    """Return a line as a record. Raises pydantic's ValidationError if it is none."""
    try:
        return _frequent(line)
    except _NOT_FREQUENT:
        return model_of(line)
