"""The variables by which a process is told which accelerators it may see, for both sides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, Self

VARIABLES: Final = {
    "NVIDIA": ("CUDA_VISIBLE_DEVICES",),
    "AMD": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    "Huawei": ("ASCEND_RT_VISIBLE_DEVICES",),
}
"""Each vendor's, the one that is set where none is first. AMD's are read one after the other, each
of what the one before has left."""
BOUND: Final = "AIPERF_ACCELERATOR"
"""The variable that keeps which one a process was bound to, as ``str`` of it writes it."""
NONE: Final = frozenset({"", "-1", "NoDevFiles"})
"""Values for no accelerator at all; the last is of a scheduler."""


class VisibleDevices(NamedTuple):
    """Accelerators of one node, as a variable names them."""

    variable: str
    names: tuple[str, ...]
    """Numbers or unique identifiers, in the order in which frameworks count them."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return those of ``VARIABLE=NAME,NAME``, as ``str`` writes them."""
        variable, _, names = text.partition("=")
        return cls(variable, tuple(names.split(",")))

    def __str__(self) -> str:
        return f"{self.variable}={','.join(self.names)}"


def devices_seen(vendor: str, count: int, environment: Mapping[str, str]) -> VisibleDevices:
    """Return the names of the accelerators that a framework counts.

    Args:
        vendor: whose they are.
        count: how many the framework sees.
        environment: in which it was asked.
    """
    variables = VARIABLES[vendor]
    given = next((name for name in variables if environment.get(name, "") not in NONE), None)
    names = environment[given].split(",") if given is not None else []
    if given is None or len(names) < count:
        return VisibleDevices(given or variables[0], tuple(map(str, range(count))))
    return VisibleDevices(given, tuple(names[:count]))
