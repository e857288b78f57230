"""What is decoded quickly is what the model of a record accepts, and with its values."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.support.run_writer import progress, trial_started

from aiperf_hpc.run import records
from aiperf_hpc.run.records import AnyEvent, Record, parsing
from aiperf_hpc.run.records.parsing import AnyRecord, FrequentRecord
from aiperf_hpc.trial import TimePhase
from aiperf_hpc.untrusted.bounds import LATEST_UTC, MOST_COUNT

HEARTBEAT = records.Heartbeat(
    phase=TimePhase.TRAIN, cpu_percent=187.5, memory_bytes=3 * 2**30, storage_waiting="NFS: é\n"
)
FREQUENT = (progress("r0-1", train=7, validation=2**63 - 1), HEARTBEAT)

NUMBERS = (
    "0 -0 -1 7 1.0 -0.0 1.5 01 +1 .5 1. 1e3 1E+3 1e 1e18 1e19 1e400 1e-400 5e-324 0.1 1_0 "
    "NaN Infinity -Infinity 9007199254740993 9007199254740993.0 9223372036854775807 "
    "9223372036854775808.0 18446744073709551616 1.7976931348623159e308 "
    "123456789012345678901234567890.5"
)
OTHERS = (
    r'true false null "1" "1.5" "NaN" [] {} "train" "TRAIN" "nope" "" "\u0000" "\ud800" '
    r'"\ud83d\ude00" "\x" "\u12"'
)
RAW = (b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\x01", b"\x7f", b"\t")
VALUES = [
    *f"{NUMBERS} {OTHERS}".encode().split(b" "),
    b"1" + b"0" * 400,
    b"1" + b"0" * 5000,
    b"[" * 100_000,
    *(b'"' + raw + b'"' for raw in RAW),
]
KEYS = [b"v", b"seq", b"utc", b"mono", b"event", b"type", b"trial", b"epoch", b"phase", b"x"]
SPACE = [*RAW[:1], *b"|| |\t|\r|\x0b|\x0c|\xef\xbb\xbf|\xc2\xa0|,|}|{}|/".split(b"|")]


def line_of(event: AnyEvent, seq: int = 3, utc: float = 1.75e9) -> bytes:
    return Record(seq=seq, utc=utc, mono=4324.25, event=event).model_dump_json().encode()


LINES = [line_of(event) for event in FREQUENT]


@st.composite
def changed_lines(draw: st.DrawFn) -> bytes:
    """Draw a line in which a value, a key, the space between or any bytes are others."""
    line = draw(st.sampled_from(LINES))
    for _ in range(draw(st.integers(1, 2))):
        places = [at for at, byte in enumerate(line) if byte in b":,{}"]
        at = draw(st.sampled_from(places)) if places else 0
        kind = draw(st.sampled_from(("value", "member", "space", "bytes", "cut", "drop")))
        end = next((p for p in places if p > at), len(line))
        if kind == "value":
            line = line[: at + 1] + draw(st.sampled_from(VALUES)) + line[end:]
        elif kind == "member":
            key, value = draw(st.sampled_from(KEYS)), draw(st.sampled_from(VALUES))
            line = line[: at + 1] + b'"' + key + b'":' + value + b"," + line[at + 1 :]
        elif kind == "space":
            line = line[:at] + draw(st.sampled_from(SPACE)) + line[at:]
        elif kind == "bytes":
            at = draw(st.integers(0, len(line)))
            line = line[:at] + draw(st.binary(max_size=3)) + line[at + draw(st.integers(0, 3)) :]
        elif kind == "cut":
            line = line[: draw(st.integers(0, len(line)))]
        else:
            line = line[:at] + line[end:]
    return line


def values_of(record: AnyRecord) -> str:
    """Return what a record says, with the types of its values."""
    if isinstance(record, FrequentRecord):
        told = msgspec.structs.asdict(record)
        told["event"] = msgspec.structs.asdict(record.event)
    else:
        told = dict(record)
        told["event"] = {k: v for k, v in record.event if k != "type"}
    return repr(sorted(told.items()))


def outcome(read: Callable[[bytes], AnyRecord], line: bytes) -> str:
    """Return the values that a reader finds in a line, or its error."""
    try:
        return values_of(read(line))
    except ValidationError as error:
        return str(error)


@settings(max_examples=300, deadline=None)
@given(changed_lines())
@example(LINES[0].replace(b'"v":2,', b""))
@example(LINES[0].replace(b'"v":2,', b'"v":3,"v":2,'))
@example(LINES[0].replace(b'"type":"progress",', b""))
@example(LINES[0].replace(b'"type":"progress",', b'"type":"heartbeat",'))
@example(LINES[0].replace(b"}}", b',"type":"heartbeat"}}'))
def test_a_line_is_to_the_quick_reader_what_it_is_to_the_model(line: bytes) -> None:
    assert outcome(parsing.parsed, line) == outcome(parsing.model_of, line)


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
@pytest.mark.parametrize("line", LINES, ids=("progress", "heartbeat"))
def test_each_value_in_each_place_is_to_both_the_same(line: bytes, value: bytes) -> None:
    starts = [at + 1 for at, byte in enumerate(line) if byte in b":"]
    for start in starts:
        end = next(at for at in range(start, len(line)) if line[at] in b",}")
        changed = line[:start] + value + line[end:]
        assert outcome(parsing.parsed, changed) == outcome(parsing.model_of, changed)


@pytest.mark.parametrize("event", FREQUENT, ids=("progress", "heartbeat"))
@pytest.mark.parametrize(("seq", "utc"), [(3, 1.75e9), (0, 0.0), (MOST_COUNT, LATEST_UTC)])
def test_frequent_records_are_read_quickly_as_they_are_written(
    event: AnyEvent, seq: int, utc: float
) -> None:
    line = line_of(event, seq, utc)
    record = parsing.parsed(line)
    assert isinstance(record, FrequentRecord)
    assert values_of(record) == values_of(parsing.model_of(line))


def test_a_heartbeat_becomes_its_model_again() -> None:
    record = parsing.parsed(line_of(HEARTBEAT))
    assert isinstance(record.event, parsing.FrequentHeartbeat)
    assert record.event.model() == HEARTBEAT


def test_all_other_records_are_models() -> None:
    assert isinstance(parsing.parsed(line_of(trial_started())), Record)
