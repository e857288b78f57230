"""Bounded reading of untrusted files, such as a run from an unknown source.

Only regular files are opened. Files of a run must be inside its directory and must not be links.
Files read at once have a maximum size, and YAML and JSON have a maximum depth.
docs/decisions/hostile_input.md explains each limit.
"""

from __future__ import annotations

import codecs
import errno
import json
import os
import re
import stat
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from aiperf_hpc.errors import UsageError, raising, reason_of
from aiperf_hpc.untrusted.bounds import first_fault

Model = TypeVar("Model", bound=BaseModel)

MOST_BYTES = 64 * 1024 * 1024
"""Maximum size of a file that is read at once, in bytes."""
MOST_LEVELS = 100
"""Maximum nesting depth of YAML and JSON. A record has 6 levels; more than a few hundred could not
be serialized again."""
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NO_BRACKETS = bytes(set(range(256)) - _STEPS.keys())
MOST_YAML_BYTES = 1024 * 1024
"""Maximum size of a YAML file in bytes; the run.yaml for a node with 1,024 cores has 30 kB."""
MOST_YAML_VALUES = 10_000
"""Maximum number of values in a YAML file, with aliases expanded, which are read in about a second.
A run.yaml has 300 values plus one per core."""
MOST_DIGITS = 40
"""Maximum length of a number in YAML in characters. A float has at most 25; Python refuses to print
integers of more than 4,300 digits, which YAML may contain in hexadecimal."""


class NotRegularError(OSError):
    """The path is a folder, link, FIFO, socket or device, or is outside the run's directory."""

    def __init__(self, what: str, path: Path | str | None = None) -> None:
        super().__init__(errno.EINVAL, what, None if path is None else str(path))


def open_regular(path: Path, *, follow: bool = True) -> BinaryIO:
    """Open a regular file for reading bytes; a FIFO in its place is rejected without waiting.

    Args:
        path: path of the file.
        follow: whether the path may be a link to the file.

    Raises:
        NotRegularError: the path is not a regular file.
        OSError: the file cannot be opened.
    """
    return open(regular_descriptor(path, follow=follow), "rb")


def regular_descriptor(path: Path | str, *, follow: bool) -> int:
    """Return the file descriptor of a regular file, opened as by ``open_regular``."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    try:
        descriptor = os.open(path, flags if follow else flags | os.O_NOFOLLOW)
    except ValueError:  # A NUL, or an unpaired surrogate.
        raise NotRegularError("not a valid file name") from None
    except OSError as error:
        if error.errno == errno.ELOOP and not follow:
            raise NotRegularError("a link instead of a file", path) from None
        if error.errno == errno.ENXIO:
            raise NotRegularError("not a regular file", path) from None  # A socket.
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotRegularError("not a regular file", path)
    return descriptor


def path_inside(root: Path, name: str) -> Path:
    """Return the path of a file in a run, given by a name in one of its files.

    Raises:
        NotRegularError: the name is invalid, or has empty, ``.`` or ``..`` parts.
    """
    parts = name.split("/")
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        parts = []
    if not parts or "\0" in name or not {"", ".", ".."}.isdisjoint(parts):
        raise NotRegularError(f"{name[:100]!r} is not the name of a file in the run")
    return root / name


def open_inside(root: Path, path: Path) -> BinaryIO:
    """Open a file of a run: a regular file below its directory, with no link in its path.

    Args:
        root: directory of the run, which may be a link.
        path: path of the file from ``RunPaths`` or ``path_inside``.

    Raises:
        NotRegularError: the path is not a regular file, or is outside the directory.
        OSError: the file cannot be opened.
    """
    inside = path_inside(root, str(path.relative_to(root)))
    for folder in list(inside.relative_to(root).parents)[:-1]:
        require_no_link(root / folder)
    return open_regular(inside, follow=False)


def require_no_link(folder: Path) -> None:
    """Raise NotRegularError if a folder below a run's directory is a link."""
    if folder.is_symlink():
        raise NotRegularError("a link instead of a folder", folder)


def bytes_inside(root: Path, path: Path, most: int = MOST_BYTES) -> bytes:
    """Return the content of a file of a run. Raises NotRegularError also if it exceeds ``most``."""
    with open_inside(root, path) as file:
        return _whole(file, path, most)


def last_lines_inside(root: Path, path: Path, lines: int, most: int) -> list[str]:
    """Return the last lines of a text file of a run, from at most ``most`` bytes at its end.

    Of a line with carriage returns, such as a progress bar, the text after the last one is
    returned. A first line that is cut is returned only if there is no other. A file that does not
    exist has no lines. Raises the errors of ``open_inside``.
    """
    try:
        with open_inside(root, path) as file:
            start = max(0, os.fstat(file.fileno()).st_size - most - 1)
            file.seek(start)
            content = file.read(most + 1)
    except FileNotFoundError:
        return []
    if not content:
        return []
    found = content.decode(errors="backslashreplace").removesuffix("\n").split("\n")
    if start and len(found) > 1 and "\r" not in found[0]:
        del found[0]  # Cut, or empty because the byte before the last ``most`` bytes ends a line.
    return [line.removesuffix("\r").rpartition("\r")[2] for line in found[-lines:]]


def bytes_of(path: Path, most: int = MOST_BYTES) -> bytes:
    """Return the content of a file that may be a link. Raises the errors of ``bytes_inside``."""
    with open_regular(path) as file:
        return _whole(file, path, most)


def _whole(file: BinaryIO, path: Path, most: int) -> bytes:
    content = file.read(most + 1)
    if len(content) > most:
        raise NotRegularError(f"larger than {most:,} bytes", path)
    return content


def text_of(
    path: Path, most: int = MOST_BYTES, errors: Literal["strict", "replace"] = "strict"
) -> str:
    """Return a file's text without a byte order mark; ``errors`` handles undecodable bytes.

    Raises:
        UsageError: the file is not regular, larger than ``most`` bytes, or not text. The message is
            the reason without the file name.
    """
    try:
        content = bytes_of(path, most)
        return content.decode(_encoding(content), errors)
    except (OSError, UnicodeError) as error:
        raise UsageError(reason_of(error)) from None


def _encoding(content: bytes) -> str:
    # Spreadsheets save "Unicode text" as UTF-16.
    wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return "utf-16" if wide else "utf-8-sig"


def parsed_json(content: bytes | str) -> Any:  # noqa: ANN401 -- whatever was written
    """Parse JSON. Raises ValueError if it is invalid or nested too deeply."""
    if isinstance(content, bytes):
        content = content.decode(json.detect_encoding(content), "surrogatepass")
    with raising(ValueError("nested too deeply"), RecursionError):
        value = json.loads(content)
    if _levels(content) > MOST_LEVELS:
        raise ValueError("nested too deeply")
    return value


def _levels(text: str) -> int:
    """Return the nesting depth of lists and objects in valid JSON text."""
    # Much faster than a walk over the values; strings in valid JSON are always terminated.
    brackets = _STRING.sub("", text).encode("ascii", "ignore").translate(None, _NO_BRACKETS)
    return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0)


def nested_too_deep(value: object) -> bool:
    """Return whether lists and objects are nested more deeply than ``MOST_LEVELS``."""
    level = [value]
    for _ in range(MOST_LEVELS):
        level = [part for each in level for part in _parts(each)]
        if not level:
            return False
    return True


def _parts(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def yaml_of(path: Path, most: int = MOST_YAML_BYTES) -> dict[Any, Any]:
    """Return the mapping in a YAML file; duplicate keys are rejected.

    Raises:
        UsageError: the content is not a mapping, or an error of ``text_of``. The message is the
            reason without the file name.
    """
    values = parsed_yaml(text_of(path, most))
    if not isinstance(values, dict):
        raise UsageError("not a mapping of keys to values")
    return values


def yaml_model(path: Path, model: type[Model], most: int = MOST_YAML_BYTES) -> Model:
    """Return the content of a YAML file as a model.

    Raises:
        UsageError: the file cannot be read or is invalid. The message is the reason without the
            file name.
    """
    try:
        return model.model_validate(yaml_of(path, most))
    except ValidationError as error:
        raise UsageError(first_fault(error, "the file")) from None


def parsed_yaml(text: str) -> Any:  # noqa: ANN401 -- whatever was written
    """Parse YAML; duplicate keys are rejected.

    Raises:
        UsageError: the text is invalid or too large; the message is the reason.
    """
    try:
        return yaml.load(text, _Loader)  # noqa: S506 -- a SafeLoader that is stricter
    except yaml.MarkedYAMLError as error:
        raise UsageError(f"not YAML: {_marked(error)}") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that does not exist
        raise UsageError(f"not YAML: {' '.join(str(error).split())[:200]}") from None
    except (RecursionError, OverflowError, TypeError, AttributeError, LookupError) as error:
        # A tag on an unsuitable value, such as !!int on text without digits.
        raise UsageError(f"not YAML: {type(error).__name__}") from None


def _marked(error: yaml.MarkedYAMLError) -> str:
    """Return the line number and the problem."""
    mark, problem = error.problem_mark or error.context_mark, error.problem or error.context or ""
    if "'\\t'" in problem:
        problem = "a tab; use spaces"
    if error.context_mark and "'<stream end>'" in problem:
        mark, problem = error.context_mark, "a bracket is not closed"
    return problem[:200] if mark is None else f"line {mark.line + 1}: {problem[:200]}"


class _Loader(yaml.SafeLoader):
    """Rejects duplicate keys and documents that would expand to too many values.

    PyYAML silently uses the last of duplicate keys. It does not copy aliases, but later readers
    traverse the expanded values, of which 9 lines can have 10^9.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._composed = 0
        self._open = 0
        self._sizes: dict[int, tuple[int, int]] = {}
        """Number of expanded values and nesting depth of each complete node."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:  # noqa: ANN401
        self._composed += 1
        _require(self._composed <= MOST_YAML_VALUES, "too many values")
        _require(self._open < MOST_LEVELS, "nested too deeply")
        if self.check_event(yaml.AliasEvent):
            alias = self.peek_event()  # type: ignore[no-untyped-call]
            known = self.anchors.get(alias.anchor)
            _require(known is None or id(known) in self._sizes, "a value that contains itself")
            return super().compose_node(parent, index)
        self._open += 1
        node = super().compose_node(parent, index)
        self._open -= 1
        if node is not None:
            self._sizes[id(node)] = self._size(node)
        return node

    def _size(self, node: yaml.Node) -> tuple[int, int]:
        if isinstance(node, yaml.ScalarNode):
            number = node.tag.endswith((":int", ":float"))
            _require(not number or len(node.value) <= MOST_DIGITS, "a number with too many digits")
            return 1, 0
        parts = node.value
        if isinstance(node, yaml.MappingNode):
            parts = [part for pair in node.value for part in pair]
        sizes = [self._sizes[id(part)] for part in parts]
        values = 1 + sum(size for size, _ in sizes)
        levels = 1 + max((levels for _, levels in sizes), default=0)
        _require(values <= MOST_YAML_VALUES, "too many values after alias expansion")
        _require(levels <= MOST_LEVELS, "nested too deeply by aliases")
        return values, levels

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        met = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in met:
                raise yaml.YAMLError(f"the key '{key.value[:60]}' occurs twice")
            met.add(key.value if isinstance(key, yaml.ScalarNode) else None)
        return super().construct_mapping(node, deep)


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise yaml.YAMLError(what)
