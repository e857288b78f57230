"""What an engine's framework offers to the measurement of a device's peaks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol


class Work(NamedTuple):
    """A call whose rate is measured."""

    size: str
    """What it works on, as printed."""
    amount: int
    """Operations of one call, or bytes that it reads and writes."""
    run: Callable[[], object]
    """What may return before the device has done it."""


class Images(NamedTuple):
    """What a 3 x 3 convolution of as many channels as it makes works on, at stride 1."""

    batch: int
    channels: int
    side: int

    @property
    def operations(self) -> int:
        """2 for each multiplication with its addition, the padding's included."""
        return 2 * 9 * self.channels**2 * self.batch * self.side**2

    def __str__(self) -> str:
        return f"{self.batch} x {self.side} x {self.side} x {self.channels}, 3 x 3"


class PeakDevice(Protocol):
    """One device of this machine, as a framework sees it."""

    @property
    def name(self) -> str:
        """Such as cpu or cuda:0."""
        ...

    @property
    def model(self) -> str: ...

    @property
    def threads(self) -> int | None:
        """The threads that it computes on; None of an accelerator."""
        ...

    @property
    def memory_bytes(self) -> int | None:
        """What of its own memory is free; None: it has the host's."""
        ...

    @property
    def precisions(self) -> tuple[str, ...]: ...

    def product(self, n: int, precision: str) -> Work:
        """Return the product of two matrices n x n."""
        ...

    def convolution(self, images: Images, precision: str) -> Work:
        """Return a convolution forward, channels last."""
        ...

    def memory(self) -> Sequence[tuple[str, Callable[[int], Work]]]:
        """Return kernels that do little but move memory, by name, each of the bytes of an array."""
        ...

    def finish(self) -> None:
        """Return when the device has done all that it was given."""
        ...


def product_operations(n: int) -> int:
    """Return the operations of a product of two matrices n x n: 2 n^3."""
    return 2 * n**3
