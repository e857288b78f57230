"""Parser of MLPerf result logs in their three dialects, from bytes to events.

- v0.5: ``:::MLPv0.5.0 BENCHMARK SECONDS (FILE:LINE) KEY: VALUE``, without ``: VALUE`` for None;
- v0.6: ``:::MLL SECONDS KEY: {"value": VALUE, "metadata": {...}}``;
- since v0.7: ``:::MLLOG {"time_ms": ..., "key": ..., "value": ..., "metadata": {...}}``.

Any text may precede the token, such as the rank from a launcher, and other output may appear
between the lines. [mlcommons/logging: mlperf_logging/compliance_checker/mlp_parser]
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, BinaryIO, NamedTuple, TypeAlias

from pydantic_core import from_json

from aiperf_hpc.analysis.readers.descriptions import finite_number
from aiperf_hpc.untrusted.files import nested_too_deep

TOKEN = b":::ML"
"""Common prefix of the tokens of all dialects."""
MAX_LINE = 1 << 20
"""Maximum length of a line in bytes, far above that of log lines."""
TEXT = 256 << 10
"""Size of the blocks in which a log is read, in bytes."""
MAX_SETTING = 4096
"""Maximum length in bytes of a line whose value is stored as a setting."""
MAX_SETTINGS = 1000
LATEST = 1e11
"""Upper limit of valid times in UTC seconds, about 3000 years from now."""

TIMED_KEYS = frozenset(
    f"{what}_{end}"
    for what in ("run", "init", "staging", "epoch", "block", "eval")
    for end in ("start", "stop")
) | {"eval_accuracy", "eval_error", "train_epoch"}
"""Keys whose every line is an event. The first value of any other key is a setting."""

_NAMES = {key.encode(): key for key in TIMED_KEYS}
_COURSE = {key: name for key, name in _NAMES.items() if name.startswith(("epoch_", "eval_"))}
"""Most frequent keys of large logs."""
_UNSETTLED_KEYS = frozenset(
    {"train_loss", "train_accuracy", "learning_rate", "throughput", "tracked_stats", "eval_loss"}
    | {"samples_per_second", "step_time", "eval_iteration_accuracy"}
)
"""Keys whose value changes during a training run and which no metric needs."""


class Metadata(NamedTuple):
    """Metadata of a line that metrics need."""

    epoch: float | None = None
    """Number of the line's epoch, or of the first in a block of epochs."""
    passes: float = 1.0
    """Number of epochs of a block."""
    status: object = None
    """Final status of a run as logged."""


Event: TypeAlias = tuple[float, str, Any, Metadata]
"""One line of a log: UTC seconds (0 if written without a clock), key, value and metadata."""


class LineReader:
    """The relevant events of one log, and problems of its lines."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._settled: set[bytes] = {key.encode() for key in _UNSETTLED_KEYS}
        self._line = 0
        self.dialects: set[str] = set()
        """Dialect by the version that introduced it: ``0.5``, ``0.6`` or ``0.7``."""
        self.benchmark: str | None = None
        """Name of the benchmark, which v0.5 repeats in each line."""
        self._latest: _Dialect | None = None
        self._long = _Count()
        self._broken = _Count()

    @property
    def empty(self) -> bool:
        """Whether the log has no lines."""
        return self._line == 0

    def events(self) -> Iterator[Event]:
        """Yield the relevant events in the order of the file."""
        for text in self._texts():
            for line, time, key, value, epoch in find_lines(text):
                self._line += 1
                name = _COURSE.get(key)
                if name is not None:
                    if self._latest is not _V07:
                        self._meet(_V07)
                    known = None if value == b"null" else from_json(value)
                    yield int(time) / 1000, name, known, _of_epoch(epoch)
                elif (at := line.find(TOKEN)) >= 0:
                    event = self._setting(line, key) if key else self._event(line, at)
                    if event is not None:
                        yield event

    def _texts(self) -> Iterator[bytes]:
        """Yield the file in blocks of complete lines, without lines that are too long."""
        for text in iter(partial(self._file.read, TEXT), b""):
            cut = len(text) - text.rfind(b"\n") - 1
            rest = self._file.readline(MAX_LINE - cut) if cut else b""
            if cut + len(rest) < MAX_LINE or rest.endswith(b"\n"):
                yield text + rest
            else:
                yield text[:-cut]
                self._line += 1
                self._pass_long_line()

    def problems(self) -> Iterator[str]:
        """Yield a problem for each kind of unreadable line."""
        if self._long.count:
            yield f"{self._long} longer than {MAX_LINE >> 20} MiB and skipped"
        if self._broken.count:
            yield f"{self._broken} not in mllog's format and skipped"

    def _pass_long_line(self) -> None:
        self._long.add(self._line)
        for part in iter(partial(self._file.readline, MAX_LINE), b""):
            if part.endswith(b"\n"):
                break

    def _setting(self, line: bytes, key: bytes) -> Event | None:
        """Return the event of a plain line without an epoch."""
        self._meet(_V07)
        if key not in _NAMES and not self._wanted(key, len(line)):
            return None
        return _parse_v07(None, line, line.find(TOKEN))

    def _event(self, line: bytes, at: int) -> Event | None:
        dialect = _V07 if line.startswith(b":::MLLOG", at) else _old_dialect(line, at)
        if dialect is None:
            return None
        found = dialect.key.search(line, at)
        self._meet(dialect)
        if found is None:
            self._broken.add(self._line)
            return None
        if dialect is _V05 and self.benchmark is None:
            self.benchmark = found["benchmark"].decode("utf-8", "replace")
        key = found["key"]
        if key not in _NAMES and not self._wanted(key, len(line)):
            return None
        try:
            return dialect.parse(found, line, at)
        except (ValueError, KeyError, TypeError, OverflowError):
            self._broken.add(self._line)
            return None

    def _meet(self, dialect: _Dialect) -> None:
        """Store the log's dialect."""
        if dialect is not self._latest:
            self.dialects.add(dialect.version)
            self._latest = dialect

    def _wanted(self, key: bytes, length: int) -> bool:
        """Return whether this is the first line with the key of a setting."""
        if key in self._settled or length > MAX_SETTING or len(self._settled) > MAX_SETTINGS:
            return False
        self._settled.add(key)
        return True


class _Dialect(NamedTuple):
    version: str
    key: re.Pattern[bytes]
    """Pattern of a line with the group ``key``."""
    parse: Callable[[Any, bytes, int], Event]
    """Parses a line. Raises the errors of malformed JSON and unexpected values."""


def _parse_v07(found: re.Match[bytes] | None, line: bytes, at: int) -> Event:
    text = line[line.index(b"{", at) :]
    try:
        document = from_json(text)
    except ValueError:
        document = _first_object(text)
    time, key = document["time_ms"] / 1000, document["key"]
    if type(key) is not str or not -LATEST < time < LATEST:
        raise ValueError("no key or no time")
    return time, key, document.get("value"), _metadata(document)


def _parse_v06(found: re.Match[bytes], line: bytes, at: int) -> Event:
    document = _first_object(found["rest"])
    time, key = _old_time(found["time"]), found["key"].decode()
    return time, key, document.get("value"), _metadata(document)


def _parse_v05(found: re.Match[bytes], line: bytes, at: int) -> Event:
    rest = found["rest"]
    value = None if rest is None or not rest.strip() else _lenient_json(rest)
    return _old_time(found["time"]), found["key"].decode(), value, _NOTHING


_NOTHING = Metadata()


@lru_cache(maxsize=16)
def _of_epoch(number: bytes) -> Metadata:
    return Metadata(float(number)) if number else _NOTHING


def _metadata(document: dict[str, Any]) -> Metadata:
    stated = document.get("metadata")
    if type(stated) is not dict:
        return _NOTHING
    number = stated.get("epoch_num")
    return Metadata(
        finite_number(stated.get("first_epoch_num") if number is None else number),
        finite_number(stated.get("epoch_count")) or 1.0,
        stated.get("status"),
    )


def _old_time(text: bytes) -> float:
    time = float(text)
    if time >= LATEST:
        raise ValueError("no time")
    return time


_V05 = _Dialect(
    "0.5",
    re.compile(
        rb":::MLPv0\.5\.0 +(?P<benchmark>\S+) +(?P<time>[\d.]+) +\([^)]*\) +"
        rb"(?P<key>\w+) *(?::(?P<rest>.*))?"
    ),
    _parse_v05,
)
_V06 = _Dialect(
    "0.6", re.compile(rb":::MLL +(?P<time>[\d.]+) +(?P<key>\w+) *:(?P<rest>.*)"), _parse_v06
)
_V07 = _Dialect("0.7", re.compile(rb'"key" *: *"(?P<key>[^"]+)"'), _parse_v07)


def _old_dialect(line: bytes, at: int) -> _Dialect | None:
    """Return the pre-v0.7 dialect of the token at a position in a line."""
    if line.startswith(b":::MLL ", at):
        return _V06
    return _V05 if line.startswith(b":::MLPv0.5.0 ", at) else None


_DECODER = json.JSONDecoder()


def _first_object(text: bytes) -> dict[str, Any]:
    """Parse the JSON object at the beginning of a text and ignore the rest of the line."""
    try:
        document, _ = _DECODER.raw_decode(text.decode("utf-8", "replace").lstrip())
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(document, dict):
        raise TypeError("not an object")
    if nested_too_deep(document):
        raise ValueError("nested too deeply")
    return document


def _lenient_json(text: bytes) -> object:
    """Parse a value of v0.5, in which texts may be unquoted."""
    try:
        return from_json(text)
    except ValueError:
        return text.decode("utf-8", "replace").strip()


class _Count:
    """Number of occurrences, and line of the first."""

    def __init__(self) -> None:
        self.first = 0
        self.count = 0

    def add(self, line: int) -> None:
        if not self.count:
            self.first = line
        self.count += 1

    def __str__(self) -> str:
        if self.count == 1:
            return f"line {self.first} is"
        return f"{self.count:,} lines, the first of them {self.first:,}, are"


Found = tuple[bytes, bytes, bytes, bytes, bytes]
"""A line and, if it is plain, its time in milliseconds, key, value and any epoch, as written. These
are empty for other lines."""

_TEXT = r'"[ !#-\[\]-~]*+"'
"""ASCII without quotes, backslashes and control characters."""
_WHOLE = r"(?:0|[1-9]\d{0,8})"
_NUMBER = r"-?(?:0|[1-9]\d{0,18})(?:\.\d{1,40})?(?:[eE][+-]?\d{1,3})?"
_VALUE = rf"(?:{_TEXT}|{_NUMBER}|null|true|false)"
_MORE = rf'(?:, "(?!epoch_|first_epoch_num)[ !#-\[\]-~]*+": {_VALUE})'
"""A member of the metadata that is unrelated to epochs."""
_BEFORE = r"[^:\n]*+(?::(?!::ML)[^:\n]*+)*+"
"""Prefix by a launcher before the first token of a line."""
_LINE = (
    rf'{_BEFORE}:::MLLOG {{"namespace": {_TEXT}, "time_ms": ([1-9]\d{{0,13}}), '
    rf'"event_type": {_TEXT}, "key": "(\w+)", "value": ({_VALUE}), '
    rf'"metadata": {{"file": {_TEXT}, "lineno": {_WHOLE}(?:, "epoch_num": ({_WHOLE}))?'
    rf"{_MORE}{{0,20}}}}}}(?:\n|\Z)"
)
_LINES = re.compile(rf"({_LINE}|[^\n]+\n?|\n)".encode())


def find_lines(text: bytes) -> Sequence[Found]:
    """Return all lines of a text in order."""
    return _LINES.findall(text)
