"""The lines of MLPerf's logs that come by the million, found by one pattern without their JSON.

Nearly all that mlperf_logging writes since v0.7 is plain: its keys in one order, numbers and text
without escapes. Of such a line the pattern finds what JSON would give. Any other line is one that
it does not know, and left to the reader of JSON.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

Found = tuple[bytes, bytes, bytes, bytes, bytes]
"""A line and, if it is plain, its time in milliseconds, its key, its value, and its epoch if it
has one, each as it is written. Of a line that is not plain these are empty."""

_TEXT = r'"[ !#-\[\]-~]*+"'
"""ASCII without quotes, backslashes and what controls a terminal."""
_WHOLE = r"(?:0|[1-9]\d{0,8})"
_NUMBER = r"-?(?:0|[1-9]\d{0,18})(?:\.\d{1,40})?(?:[eE][+-]?\d{1,3})?"
_VALUE = rf"(?:{_TEXT}|{_NUMBER}|null|true|false)"
_MORE = rf'(?:, "(?!epoch_|first_epoch_num)[ !#-\[\]-~]*+": {_VALUE})'
"""A member of the metadata that says nothing of an epoch."""
_BEFORE = r"[^:\n]*+(?::(?!::ML)[^:\n]*+)*+"
"""What a launcher writes before the first token of a line."""
_LINE = (
    rf'{_BEFORE}:::MLLOG {{"namespace": {_TEXT}, "time_ms": ([1-9]\d{{0,13}}), '
    rf'"event_type": {_TEXT}, "key": "(\w+)", "value": ({_VALUE}), '
    rf'"metadata": {{"file": {_TEXT}, "lineno": {_WHOLE}(?:, "epoch_num": ({_WHOLE}))?'
    rf"{_MORE}{{0,20}}}}}}(?:\n|\Z)"
)
_LINES = re.compile(rf"({_LINE}|[^\n]+\n?|\n)".encode())


def find_lines(text: bytes) -> Sequence[Found]:
    """Return all lines of a text, in order."""
    return _LINES.findall(text)
