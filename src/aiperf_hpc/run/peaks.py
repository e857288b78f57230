"""``peaks.json``: the highest rates of one machine, and what could not be measured of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError

from aiperf_hpc.errors import UsageError
from aiperf_hpc.trial import Value
from aiperf_hpc.untrusted.bounds import first_fault
from aiperf_hpc.untrusted.files import text_of

Rate = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
"""Operations or bytes a second."""

PRODUCTS = ("matrix product", "convolution")
"""The kernels whose rates are in operations a second; the others move bytes."""


class Reading(Value):
    """The rate of one size, over its repetitions."""

    size: str
    amount: Annotated[int, Field(ge=1)]
    """Operations of one call, or bytes that it moves."""
    median: Rate
    best: Rate
    worst: Rate
    repetitions: Annotated[int, Field(ge=1)]

    @property
    def spread(self) -> float:
        """The best rate less the worst, as a share of the median."""
        return (self.best - self.worst) / self.median


class Device(Value):
    """One device, as an engine's framework sees it."""

    engine: str
    name: str
    """Such as cpu or cuda:0."""
    model: str
    threads: int | None
    """The threads that it computed on; None of an accelerator."""


class Sweep(Value):
    """One kernel on one device, of several sizes."""

    engine: str
    device: str
    kernel: str
    """``matrix product``, ``convolution``; or of those that move memory, whose bytes are counted
    as STREAM does, what is read and what is written: ``copy`` (a = b), ``triad`` (a = b + 3 c),
    ``update`` (a += b)."""
    precision: str
    readings: Annotated[tuple[Reading, ...], Field(min_length=1)]
    """Of sizes that ascend."""
    left_out: Annotated[int, Field(ge=0)] = 0
    """Larger sizes for which there was no time."""

    @property
    def peak(self) -> Reading:
        """The reading of the size whose median is the highest."""
        return max(self.readings, key=lambda reading: reading.median)

    @property
    def rising(self) -> bool:
        """Whether a larger size, for which there was no time, might have been faster.

        Memory is no faster for larger arrays, once they are in no cache.
        """
        last = self.left_out > 0 and self.peak is self.readings[-1]
        return last and self.kernel in PRODUCTS


class AllReduce(Value):
    """The sum of a tensor over processes of this machine."""

    collective: str
    ranks: int
    memory: str
    """Where the tensor is: ``cpu`` or ``accelerator``."""
    dtype: str
    reading: Reading
    """Of the algorithm's bandwidth: the tensor's bytes over the time."""


class Storage(Value):
    """Reading files of one folder, by one process."""

    folder: str
    file_system: str
    files: Literal["its own", "written for this"]
    cache: Literal["bypassed", "dropped", "in use"]
    """What was done about the page cache: ``bypassed`` by O_DIRECT; ``dropped`` before each block
    was read; ``in use`` where neither works, so that the rate may be memory's."""
    readings: Annotated[tuple[Reading, ...], Field(min_length=1)]
    """By the number of readers at once."""

    @property
    def peak(self) -> Reading:
        """The reading of the number of readers whose median is the highest."""
        return max(self.readings, key=lambda reading: reading.median)


class NotMeasured(Value):
    """What has no rate, and why."""

    what: str
    reason: str


class Peaks(Value):
    """The highest rates of one machine."""

    schema_version: Literal[1] = 1
    utc: float
    """When the measurement began, UTC seconds."""
    seconds: float
    """How long it took."""
    quick: bool
    host: str
    cpu: str
    cores: int
    """The logical CPUs that could be used."""
    memory_bytes: int
    load: float | None = None
    """The mean number of processes that wanted a core in the minute before."""
    rates: dict[str, Rate] = {}
    """Operations a second, medians, by the kind of work: what the machine did of fixed work."""
    versions: dict[str, str]
    devices: tuple[Device, ...] = ()
    sweeps: tuple[Sweep, ...] = ()
    allreduce: tuple[AllReduce, ...] = ()
    storage: Storage | None = None
    not_measured: tuple[NotMeasured, ...] = ()

    def products(self, engine: str, *, accelerator: bool) -> Iterator[Sweep]:
        """Yield the sweeps in operations a second of an engine, on the CPU or on accelerators."""
        yield from (s for s in self._of(engine, accelerator) if s.kernel in PRODUCTS)

    def memory(self, engine: str, *, accelerator: bool) -> Iterator[Sweep]:
        """Yield the sweeps in bytes a second of an engine, on the CPU or on accelerators."""
        yield from (s for s in self._of(engine, accelerator) if s.kernel not in PRODUCTS)

    def _of(self, engine: str, accelerator: bool) -> Iterator[Sweep]:
        names = {
            device.name
            for device in self.devices
            if device.engine == engine and (device.threads is None) == accelerator
        }
        yield from (s for s in self.sweeps if s.engine == engine and s.device in names)

    @property
    def busy(self) -> str:
        """What to know about a machine that had other work; empty where it had none."""
        if self.load is None or self.load < 0.5 * self.cores:
            return ""
        return (
            f"{self.load:.1f} processes wanted its {self.cores} cores before the measurement: what "
            "was measured is what they left"
        )

    @classmethod
    def read(cls, path: Path) -> Peaks:
        """Read what ``aiperf peaks`` wrote; of a list of such documents the fastest machine's.

        Raises:
            UsageError: the file is none of this kind.
        """
        try:
            found = _FILE.validate_json(text_of(path))
        except UsageError as error:
            raise UsageError(
                f"{path}: {error}; `aiperf peaks --out {path.parent}` writes one"
            ) from None
        except ValidationError as error:
            raise UsageError(f"{path} is no file of `aiperf peaks`: {first_fault(error)}") from None
        return max(found, key=lambda peaks: max(peaks.rates.values(), default=0.0))


def listed(content: object) -> object:
    """Return one document as a list of documents."""
    return [content] if isinstance(content, dict) else content


_FILE: TypeAdapter[list[Peaks]] = TypeAdapter(
    Annotated[list[Peaks], BeforeValidator(listed), Field(min_length=1)]
)
