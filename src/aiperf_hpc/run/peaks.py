"""The file ``peaks.json``: peak rates of one machine, and the rates that could not be measured."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError

from aiperf_hpc.errors import UsageError, restated
from aiperf_hpc.trial import Value
from aiperf_hpc.untrusted.bounds import first_fault
from aiperf_hpc.untrusted.files import text_of

Rate = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
"""Operations or bytes per second."""

PRODUCTS = ("matrix product", "convolution")
"""Kernels whose rates are in operations per second; all others are in bytes per second."""


class MeasuredRate(Value):
    """The rate for one problem size, over its repetitions."""

    size: str
    amount: Annotated[int, Field(ge=1)]
    """Operations or moved bytes of one call."""
    median: Rate
    best: Rate
    worst: Rate
    repetitions: Annotated[int, Field(ge=1)]

    @property
    def spread(self) -> float:
        """Difference between the best and the worst rate, as a fraction of the median."""
        return (self.best - self.worst) / self.median


class Device(Value):
    """One device as reported by an engine's framework."""

    engine: str
    name: str
    """Name of the device, e.g. ``cpu`` or ``cuda:0``."""
    model: str
    threads: int | None
    """Number of CPU threads; None for an accelerator."""


class Sweep(Value):
    """The rates of one kernel on one device for several problem sizes."""

    engine: str
    device: str
    kernel: str
    """Kernel: ``matrix product``, ``convolution``, or a memory kernel: ``copy`` (a = b), ``triad``
    (a = b + 3 c), ``update`` (a += b). As in STREAM, bytes that are read and written count."""
    precision: str
    readings: Annotated[tuple[MeasuredRate, ...], Field(min_length=1)]
    """Readings in ascending order of size."""
    left_out: Annotated[int, Field(ge=0)] = 0
    """Number of larger sizes that were omitted for lack of time."""

    @property
    def peak(self) -> MeasuredRate:
        """The reading with the highest median."""
        return max(self.readings, key=lambda reading: reading.median)

    @property
    def rising(self) -> bool:
        """Whether an omitted larger size might have been faster.

        That does not apply to memory kernels, whose arrays are already larger than the caches.
        """
        last = self.left_out > 0 and self.peak is self.readings[-1]
        return last and self.kernel in PRODUCTS


class AllReduce(Value):
    """All-reduce of a tensor over processes of this machine."""

    collective: str
    ranks: int
    memory: str
    """Memory of the tensor: ``cpu`` or ``accelerator``."""
    dtype: str
    reading: MeasuredRate
    """Algorithm bandwidth: the tensor's bytes divided by the time."""


class Storage(Value):
    """Read rates of files in one folder, by one process."""

    folder: str
    file_system: str
    files: Literal["its own", "written for this"]
    cache: Literal["bypassed", "dropped", "in use"]
    """Use of the page cache: ``bypassed`` by O_DIRECT, ``dropped`` before each block is read, or
    ``in use`` if neither works; the rate may then be that of memory."""
    readings: Annotated[tuple[MeasuredRate, ...], Field(min_length=1)]
    """Readings by the number of concurrent readers."""

    @property
    def peak(self) -> MeasuredRate:
        """The reading with the highest median."""
        return max(self.readings, key=lambda reading: reading.median)


class NotMeasured(Value):
    """A rate that could not be measured, and the reason."""

    what: str
    reason: str


class Peaks(Value):
    """Peak rates of one machine."""

    schema_version: Literal[1] = 1
    utc: float
    """Start of the measurement, UTC seconds."""
    seconds: float
    """Duration of the measurement in seconds."""
    quick: bool
    host: str
    cpu: str
    cores: int
    """Number of available logical CPUs."""
    memory_bytes: int
    load: float | None = None
    """Load average: the mean number of runnable processes in the minute before."""
    rates: dict[str, Rate] = {}
    """Median operations per second of fixed work, by kind of work."""
    versions: dict[str, str]
    devices: tuple[Device, ...] = ()
    sweeps: tuple[Sweep, ...] = ()
    allreduce: tuple[AllReduce, ...] = ()
    storage: Storage | None = None
    not_measured: tuple[NotMeasured, ...] = ()

    def products(self, engine: str, *, accelerator: bool) -> Iterator[Sweep]:
        """Yield the sweeps of an engine in operations per second, on the CPU or on accelerators."""
        yield from (s for s in self._of(engine, accelerator) if s.kernel in PRODUCTS)

    def memory(self, engine: str, *, accelerator: bool) -> Iterator[Sweep]:
        """Yield the sweeps of an engine in bytes per second, on the CPU or on accelerators."""
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
        """Warning about other load on the machine; empty if there was none."""
        if self.load is None or self.load < 0.5 * self.cores:
            return ""
        return (
            f"the load was {self.load:.1f} on {self.cores} cores before the measurement, which "
            "lowers the measured peaks"
        )

    @classmethod
    def read(cls, path: Path) -> Peaks:
        """Read a file of ``aiperf peaks``; from a list of documents, return the fastest machine's.

        Raises:
            UsageError: the file cannot be read or is not of this format.
        """
        remedy = f"; `aiperf peaks --out {path.parent}` writes one"
        try:
            with restated(f"{path}", after=remedy):
                found = _FILE.validate_json(text_of(path))
        except ValidationError as error:
            raise UsageError(
                f"{path} is not a file of `aiperf peaks`: {first_fault(error)}"
            ) from None
        return max(found, key=lambda peaks: max(peaks.rates.values(), default=0.0))


def listed(content: object) -> object:
    """Return one document as a list of documents."""
    return [content] if isinstance(content, dict) else content


_FILE: TypeAdapter[list[Peaks]] = TypeAdapter(
    Annotated[list[Peaks], BeforeValidator(listed), Field(min_length=1)]
)
