"""Tags and the note of a run: remarks of its users, which may change at any time.

They are no records: no report, signature or verification reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated

from pydantic import Field, ValidationError

from aiperf_hpc.errors import RunDirectoryError, UsageError, restated
from aiperf_hpc.run.paths import RunPaths, write_whole
from aiperf_hpc.run.requests import read_if_present
from aiperf_hpc.trial import Value
from aiperf_hpc.untrusted.bounds import in_words, message_of

TAG = in_words(
    r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,63}$",
    "at most 64 letters, digits and ._:/@+-, a letter or a digit first",
)


class Annotations(Value):
    """Tags and the note of a run."""

    tags: Annotated[tuple[Annotated[str, Field(pattern=TAG)], ...], Field(max_length=20)] = ()
    """Tags of the run, in the order in which they were added."""
    note: Annotated[str, Field(max_length=2000)] = ""
    """Note on the run; may be empty."""

    def changed(
        self, add: Iterable[str] = (), remove: Iterable[str] = (), note: str | None = None
    ) -> Annotations:
        """Return a copy with other tags and, if given, another note.

        Raises:
            UsageError: a tag or the note is invalid, or the run does not have a tag to remove.
        """
        removed = set(remove)
        if missing := sorted(removed - set(self.tags)):
            raise UsageError(f"--untag {missing[0]}: the run does not have this tag")
        tags = tuple(tag for tag in dict.fromkeys((*self.tags, *add)) if tag not in removed)
        try:
            return Annotations(tags=tags, note=self.note if note is None else note)
        except ValidationError as error:
            first = error.errors()[0]
            option = f"--tag {first['input']}"[:100] if first["loc"][0] == "tags" else "--note"
            raise UsageError(f"{option}: {message_of(first)}") from None

    def lines(self) -> Iterator[str]:
        """Yield the tags and the note, one line each, if there are any."""
        if self.tags:
            yield f"tags  {', '.join(self.tags)}"
        if self.note:
            yield f"note  {' '.join(self.note.split())}"


def read_annotations(paths: RunPaths) -> Annotations:
    """Return the tags and the note of a run.

    Raises:
        RunDirectoryError: their file is damaged or cannot be read.
    """
    unreadable = f"{paths.annotations} cannot be read"
    with restated(unreadable, RunDirectoryError, "; make it readable", caught=OSError):
        found = read_if_present(paths, paths.annotations, Annotations, "the tags and the note")
    return found or Annotations()


def write_annotations(paths: RunPaths, annotations: Annotations) -> None:
    """Replace the tags and the note of a run. Raises OSError."""
    write_whole(paths.annotations, f"{annotations.model_dump_json(indent=1)}\n")
