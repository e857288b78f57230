"""What a source of telemetry is asked for, and how its refusals become labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from aiperf_hpc.system.description import AcceleratorName
from aiperf_hpc.system.tools import Handle, Question

T = TypeVar("T")


class Reading(NamedTuple):
    """One accelerator now; None where it was not told."""

    utilisation: float | None = None
    """Percent."""
    memory: float | None = None
    """Bytes in use."""
    watts: float | None = None
    celsius: float | None = None
    mhz: float | None = None
    memory_mhz: float | None = None
    millijoules: int | None = None
    """A counter of energy, since some moment."""


_LABELS: Final = {
    "utilisation": "utilisation",
    "memory": "memory",
    "watts": "power",
    "celsius": "temperature",
    "mhz": "clock",
    "memory_mhz": "memory clock",
    "millijoules": "energy counter",
}
"""What people call the values of a reading."""


class Asker:
    """Asks for one value after the other; who has refused one is not asked for it again.

    Until ``again``: a refusal may cost more than an answer, and most are for ever.
    """

    def __init__(self, refusals: tuple[type[Exception], ...] = ()) -> None:
        """Take the errors by which whoever is asked refuses, besides AbsentError."""
        self._refusals = refusals
        self._refused: set[str] = set()
        self.absent: dict[str, str] = {}
        """Why what was refused is not told, by its name."""

    def ask(self, name: str, read: Callable[[], T]) -> T | None:
        """Return what ``read`` returns; None, and the reason under ``name``, where it refuses."""
        if name in self._refused:
            return None
        question = Question(*self._refusals)
        try:
            told = question.ask(name, read)
        except Exception as error:  # noqa: BLE001 -- no tool may end a run; its words are recorded
            question.absent[name] = f"unexpected {type(error).__name__}: {error}"
            told = None
        if question.absent:
            self._refused.add(name)
            self.absent |= question.absent
        else:
            self.absent.pop(name, None)
        return told

    def reading(self, name: str, reads: Mapping[str, Callable[[], Any]]) -> Reading:
        """Return an accelerator's reading, of what each of ``reads`` returns by its field."""
        told = {field: self.ask(f"{name}: {_LABELS[field]}", read) for field, read in reads.items()}
        return Reading(**told)

    def again(self) -> None:
        """Let everything be asked for once more."""
        self._refused.clear()


class AcceleratorSource(Protocol):
    """What tells of one vendor's accelerators. Opened by its function, closed with its context."""

    @property
    def names(self) -> Sequence[AcceleratorName]: ...

    @property
    def tool(self) -> str:
        """Its name in words."""
        ...

    @property
    def cheap(self) -> bool:
        """Whether it can be asked every second; a program that has to be started cannot."""
        ...

    @property
    def asker(self) -> Asker:
        """What keeps why something is not told."""
        ...

    def read(self) -> list[Reading]:
        """Return each accelerator as it is now, in the order of ``names``.

        Raises:
            AbsentError: it tells nothing any more.
        """
        ...


class LibrarySource:
    """Accelerators of one vendor, whose library asks each by its handle."""

    tool: str
    vendor: str
    cheap = True

    def __init__(self, handles: Sequence[Handle], refusal: type[Exception]) -> None:
        """Take what the library calls each of them, and the error by which it refuses."""
        self.asker = Asker((refusal,))
        self._handles = handles
        self.names = [
            AcceleratorName(vendor=self.vendor, index=index) for index in range(len(handles))
        ]

    def reads(self, handle: Handle) -> Mapping[str, Callable[[], Any]]:
        """Return what asks the library for each field of a ``Reading``."""
        raise NotImplementedError

    def read(self) -> list[Reading]:
        """Return each accelerator as it is now, in the order of ``names``."""
        each = zip(self.names, self._handles, strict=True)
        return [self.asker.reading(str(name), self.reads(handle)) for name, handle in each]
