"""The lines of MLPerf's logs that come by the million, found by one pattern without their JSON.

All that mlperf_logging writes of an epoch or an evaluation since v0.7 is plain: its keys in one
order, numbers and text without escapes. Of such a line the pattern finds what JSON would give. Any
other line is one that it does not know, and left to the reader of JSON.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

Found = tuple[bytes, bytes, bytes, bytes, bytes]
"""Time in milliseconds, key, value and epoch of a plain line, the last two empty where there are
none; or nothing of these and, at the end, the whole of another line."""

_TEXT = r'"[ !#-\[\]-~]*+"'
"""ASCII without quotes, backslashes and what controls a terminal."""
_WHOLE = r"(?:0|[1-9]\d{0,8})"
_NUMBER = r"(?!-0[,}])-?(?:0|[1-9]\d{0,18})(?:\.\d{1,40})?(?:[eE][+-]?\d{1,3})?"
"""-0 is the integer 0 in JSON, and not -0.0."""
_KEY = "(e(?:poch_(?:start|stop)|val_(?:start|stop|error|accuracy)))"
_MORE = rf'(?:, "(?!epoch_|first_epoch_num)[ !#-\[\]-~]*+": (?:{_TEXT}|{_NUMBER}|null|true|false))'
"""A member of the metadata that says nothing of an epoch."""
_BEFORE = r"[^:\n]*+(?::(?!::ML)[^:\n]*+)*+"
"""What a launcher writes before the first token of a line."""
_LINE = (
    rf'{_BEFORE}:::MLLOG {{"namespace": {_TEXT}, "time_ms": ([1-9]\d{{0,13}}), '
    rf'"event_type": {_TEXT}, "key": "{_KEY}", "value": (?:null|({_NUMBER})), '
    rf'"metadata": {{"file": {_TEXT}, "lineno": {_WHOLE}(?:, "epoch_num": ({_WHOLE}))?'
    rf"{_MORE}{{0,20}}}}}}(?:\n|\Z)"
)
_LINES = re.compile(rf"{_LINE}|([^\n]+\n?|\n)".encode())


def find_lines(text: bytes) -> Sequence[Found]:
    """Return all lines of a text, in order."""
    return _LINES.findall(text)
