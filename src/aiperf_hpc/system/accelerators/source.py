"""Sources of accelerators' telemetry: their readings, and the reasons for missing values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from aiperf_hpc.system.description import AcceleratorName
from aiperf_hpc.system.tools import Probe

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

    def reading(self, name: str, reads: Callable[[], Reads]) -> Reading:
        """Return an accelerator's reading, with each value that can be read."""
        found = self.read(name, reads) or {}
        return Reading(**{key: self.read(f"{name}: {_LABELS[key]}", found[key]) for key in found})

    def reset(self) -> None:
        """Let all values be read again."""
        self._missing.clear()


Reads = Mapping[str, Callable[[], Any]]
"""Functions that read an accelerator's current values, by the field of a ``Reading``."""


class AcceleratorSource:
    """The telemetry of one vendor's accelerators, open within its function's context."""

    def __init__(
        self,
        tool: str,
        names: Sequence[AcceleratorName],
        look: Callable[[], Iterable[Callable[[], Reads]]],
        *,
        cheap: bool,
        failures: tuple[type[Exception], ...] = (),
    ) -> None:
        """Read nothing yet.

        Args:
            tool: the name of the tool.
            names: the accelerators in the order of the tool.
            look: returns what is to be read of each now. Raises AbsentError if there is none of
                them any more; what it returns raises it of one accelerator.
            cheap: whether it can be read every second; a program that has to be started cannot.
            failures: the tool's errors, besides AbsentError, by which a value is missing.
        """
        self.tool = tool
        self.names = names
        self.cheap = cheap
        self.probe = RepeatedProbe(failures)
        self._look = look

    def read(self) -> list[Reading]:
        """Return each accelerator as it is now, in the order of ``names``.

        Raises:
            AbsentError: it has no values any more.
        """
        each = zip(map(str, self.names), self._look(), strict=True)
        return [self.probe.reading(name, reads) for name, reads in each]


def numbered(vendor: str, numbers: Iterable[int]) -> list[AcceleratorName]:
    """Return the names of a vendor's accelerators."""
    return [AcceleratorName(vendor=vendor, index=number) for number in numbers]
