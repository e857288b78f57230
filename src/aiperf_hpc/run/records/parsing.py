"""A parser of the most frequent records, which takes a fifth of the time of their models.

Nearly all records of a large run are progress and heartbeats. Lines decoded here are valid for the
model of the record and have the same values. All other lines are left to the model, which may
accept more, such as a number in quotes, and which reports the error of a malformed line.
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
    """The fields of ``records.Progress``."""

    trial: str
    epoch: _Number
    train_samples: _Count
    validation_samples: _Count


class FrequentHeartbeat(msgspec.Struct, tag="heartbeat", frozen=True, forbid_unknown_fields=True):
    """The fields of ``records.Heartbeat``."""

    phase: TimePhase
    cpu_percent: float
    memory_bytes: _Count
    storage_wait_seconds: _Time = 0.0
    storage_waiting: str = ""

    def model(self) -> Heartbeat:
        """Return it as a model, like other records."""
        return Heartbeat.model_validate(msgspec.structs.asdict(self))


class FrequentRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fields of a ``records.Record`` with one of these events."""

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
