"""Sources of accelerators' telemetry: their readings, and the reasons for missing values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from aiperf_hpc.system.description import AcceleratorName
from aiperf_hpc.system.tools import Handle, Probe

T = TypeVar("T")


class Reading(NamedTuple):
    """The current values of an accelerator; None for missing ones."""

    utilisation: float | None = None
    """Percent."""
    memory: float | None = None
    """Bytes in use."""
    watts: float | None = None
    celsius: float | None = None
    mhz: float | None = None
    memory_mhz: float | None = None
    millijoules: int | None = None
    """An energy counter with an arbitrary start."""


_LABELS: Final = {
    "utilisation": "utilisation",
    "memory": "memory",
    "watts": "power",
    "celsius": "temperature",
    "mhz": "clock",
    "memory_mhz": "memory clock",
    "millijoules": "energy counter",
}
"""The values of a reading as named in reasons."""


class RepeatedProbe:
    """Reads values repeatedly, but one that is missing not again before ``reset``.

    A failure may cost more than a value, and most are permanent.
    """

    def __init__(self, failures: tuple[type[Exception], ...] = ()) -> None:
        """Take the errors, besides AbsentError, by which a value is missing."""
        self._failures = failures
        self._missing: set[str] = set()
        self.absent: dict[str, str] = {}
        """The reason for each missing value, by its name."""

    def read(self, name: str, read: Callable[[], T]) -> T | None:
        """Return the value of ``read``; if it fails, None, with the reason under ``name``."""
        if name in self._missing:
            return None
        probe = Probe(*self._failures)
        try:
            value = probe.read(name, read)
        except Exception as error:  # noqa: BLE001 -- no tool may end a run; its words are recorded
            probe.absent[name] = f"unexpected {type(error).__name__}: {error}"
            value = None
        if probe.absent:
            self._missing.add(name)
            self.absent |= probe.absent
        else:
            self.absent.pop(name, None)
        return value

    def reading(self, name: str, reads: Mapping[str, Callable[[], Any]]) -> Reading:
        """Return an accelerator's reading, with the value of each of ``reads`` by its field."""
        values = {
            field: self.read(f"{name}: {_LABELS[field]}", read) for field, read in reads.items()
        }
        return Reading(**values)

    def reset(self) -> None:
        """Let all values be read again."""
        self._missing.clear()


class AcceleratorSource(Protocol):
    """The telemetry of one vendor's accelerators, open within its function's context."""

    @property
    def names(self) -> Sequence[AcceleratorName]: ...

    @property
    def tool(self) -> str:
        """The name of the tool."""
        ...

    @property
    def cheap(self) -> bool:
        """Whether it can be read every second; a program that has to be started cannot."""
        ...

    @property
    def probe(self) -> RepeatedProbe:
        """The probe that keeps the reasons for missing values."""
        ...

    def read(self) -> list[Reading]:
        """Return each accelerator as it is now, in the order of ``names``.

        Raises:
            AbsentError: it has no values any more.
        """
        ...


class LibrarySource:
    """Accelerators of one vendor, whose library reads each by its handle."""

    tool: str
    vendor: str
    cheap = True

    def __init__(self, handles: Sequence[Handle], failure: type[Exception]) -> None:
        """Take the library's handles, and the error of missing values."""
        self.probe = RepeatedProbe((failure,))
        self._handles = handles
        self.names = [
            AcceleratorName(vendor=self.vendor, index=index) for index in range(len(handles))
        ]

    def reads(self, handle: Handle) -> Mapping[str, Callable[[], Any]]:
        """Return a function for each field of a ``Reading``."""
        raise NotImplementedError

    def read(self) -> list[Reading]:
        """Return each accelerator as it is now, in the order of ``names``."""
        each = zip(self.names, self._handles, strict=True)
        return [self.probe.reading(str(name), self.reads(handle)) for name, handle in each]
