"""Sources of accelerator telemetry: readings, and the reasons for missing values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, NamedTuple, TypeVar

from aiperf_hpc.system.description import AcceleratorName
from aiperf_hpc.system.tools import Probe

T = TypeVar("T")


class AcceleratorReading(NamedTuple):
    """Current values of an accelerator; None for missing ones."""

    utilization: float | None = None
    """Utilization in percent."""
    memory: float | None = None
    """Used memory in bytes."""
    watts: float | None = None
    celsius: float | None = None
    mhz: float | None = None
    memory_mhz: float | None = None
    millijoules: int | None = None
    """Energy counter with an arbitrary origin."""


_LABELS: Final = {
    "watts": "power",
    "celsius": "temperature",
    "mhz": "clock",
    "memory_mhz": "memory clock",
    "millijoules": "energy counter",
}
"""Names of a reading's values in reasons, if they differ."""


class RepeatedProbe(Probe):
    """Reads values repeatedly, but does not retry missing ones before ``reset``.

    A failed read may be slower than a successful one, and most failures are permanent.
    """

    def __init__(self, *failures: type[Exception]) -> None:
        super().__init__(*failures)
        self._missing: set[str] = set()

    def read(self, name: str, read: Callable[[], T]) -> T | None:
        """Return the result of ``read``, or None if it fails; record the reason under ``name``."""
        if name in self._missing:
            return None
        self.absent.pop(name, None)
        value = None
        try:
            value = super().read(name, read)
        except Exception as error:  # noqa: BLE001 -- no tool may end a run; its words are recorded
            self.absent[name] = f"unexpected {type(error).__name__}: {error}"
        if name in self.absent:
            self._missing.add(name)
        return value

    def reading(self, name: str, reads: Callable[[], Reads]) -> AcceleratorReading:
        """Return an accelerator's reading, with all readable values."""
        found = self.read(name, reads) or {}
        return AcceleratorReading(
            **{key: self.read(f"{name}: {_LABELS.get(key, key)}", found[key]) for key in found}
        )

    def reset(self) -> None:
        """Retry missing values on the next read."""
        self._missing.clear()


Reads = Mapping[str, Callable[[], Any]]
"""Functions that read an accelerator's current values, by field of ``AcceleratorReading``."""


@dataclass(eq=False)
class AcceleratorSource:
    """The telemetry of one vendor's accelerators, valid within the vendor's context manager."""

    tool: str
    """Name of the tool."""
    names: Sequence[AcceleratorName]
    """Accelerators in the order of the tool."""
    look: Callable[[], Iterable[Callable[[], Reads]]]
    """Returns a function per accelerator that returns its readers. ``look`` raises AbsentError if
    no accelerator is left, the function if that one is missing."""
    _: KW_ONLY
    cheap: bool
    """Whether it can be read every second, unlike a program that has to be started."""
    failures: tuple[type[Exception], ...] = ()
    """Exceptions of the tool, besides AbsentError, that mean a missing value."""

    def __post_init__(self) -> None:
        self.probe = RepeatedProbe(*self.failures)

    def read(self) -> list[AcceleratorReading]:
        """Return the current readings of all accelerators, in the order of ``names``.

        Raises:
            AbsentError: the accelerators are no longer available.
        """
        each = zip(map(str, self.names), self.look(), strict=True)
        return [self.probe.reading(name, reads) for name, reads in each]


def numbered(vendor: str, numbers: Iterable[int]) -> list[AcceleratorName]:
    """Return the identities of a vendor's accelerators with these numbers."""
    return [AcceleratorName(vendor=vendor, index=number) for number in numbers]
