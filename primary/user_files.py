"""Files that anyone may have written: regular ones only, and of bounded size if read whole."""

from __future__ import annotations

import codecs
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO, Literal

import yaml

from aiperf_hpc.errors import UsageError, reason_of

MOST_BYTES = 64 * 1024 * 1024
"""The largest file that is read whole."""


class NotRegularError(OSError):
    """The name stands for a folder, a FIFO, a socket or a device."""


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading bytes; a FIFO in its place is refused, not waited for.

    Raises:
        NotRegularError: it is something else.
        OSError: it cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotRegularError("not a regular file")
    return open(descriptor, "rb")


def text_of(
    path: Path, most: int = MOST_BYTES, errors: Literal["strict", "replace"] = "strict"
) -> str:
    """Return a file's text without its byte order mark; ``errors``: what is done of other bytes.

    Raises:
        UsageError: it is no regular file, larger than ``most`` bytes, or no text; the message is
            the reason, without the name.
    """
    try:
        with open_regular(path) as file:
            content = file.read(most + 1)
        if len(content) > most:
            raise UsageError(f"larger than {most:,} bytes")
        return content.decode(_encoding(content), errors)
    except (OSError, UnicodeError) as error:
        raise UsageError(reason_of(error)) from None


def _encoding(content: bytes) -> str:
    # What spreadsheets save as "Unicode text" is UTF-16.
    wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return "utf-16" if wide else "utf-8-sig"


def yaml_of(path: Path, most: int) -> dict[Any, Any]:
    """Return the mapping that a YAML file is, in which no key stands twice.

    Raises:
        UsageError: it is none, or as ``text_of``; the message is the reason, without the name.
    """
    text = text_of(path, most)
    try:
        values = yaml.load(text, _Loader)  # noqa: S506 -- a SafeLoader that is stricter
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that does not exist
        raise UsageError(f"not YAML: {' '.join(str(error).split())[:200]}") from None
    except RecursionError:
        raise UsageError("not YAML: nested too deep") from None
    if not isinstance(values, dict):
        raise UsageError("not a mapping of keys to values")
    return values


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice, of which YAML's own reader takes the last in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        met = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in met:
                raise yaml.YAMLError(f"the key '{key.value[:60]}' stands twice")
            met.add(key.value if isinstance(key, yaml.ScalarNode) else None)
        return super().construct_mapping(node, deep)
