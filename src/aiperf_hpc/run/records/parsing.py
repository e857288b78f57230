"""A parser of the most frequent records, which takes a fifth of the time of their models.

Nearly all records of a large run are progress and heartbeats. Lines decoded here are valid for the
model of the record and have the same values. All other lines are left to the model, which may
accept more, such as a number in quotes, and which reports the error of a malformed line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

import msgspec
from pydantic import ValidationError
from pydantic_core import from_json, to_json

from aiperf_hpc.earlier_names import RECORDS, renamed
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
    v: Literal[1, 2] = 2


AnyRecord = Record | FrequentRecord

_model: Callable[[bytes], Record] = RECORD.validator.validate_json
"""The parser without the options that a TypeAdapter passes on: a large run has millions of
records."""
_frequent = msgspec.json.Decoder(FrequentRecord).decode
_NOT_FREQUENT = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def model_of(line: bytes) -> Record:
    """Return a line as a model. Raises pydantic's ValidationError if it is not a record."""
    try:
        return _model(line)
    except ValidationError:
        present = _with_present_names(line)
        if present is None:
            raise
        return _model(present)


def _with_present_names(line: bytes) -> bytes | None:
    """Return a record of version 1 with its present names; None if it has no earlier ones."""
    try:
        record = from_json(line)
    except ValueError:
        return None
    event = record.get("event") if isinstance(record, dict) and record.get("v") == 1 else None
    if not isinstance(event, dict):
        return None
    kind = str(event.get("type"))
    ((now, fields),) = renamed({kind: event}, RECORDS).items()
    if now == kind and fields == event:
        return None
    return to_json({**record, "event": {**fields, "type": now}})


def parsed(line: bytes) -> AnyRecord:
    """Return a line as a record. Raises pydantic's ValidationError if it is none."""
    try:
        return _frequent(line)
    except _NOT_FREQUENT:
        return model_of(line)
