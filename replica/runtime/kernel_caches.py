"""Folders for compiled and tuned kernels that no earlier run has filled.

Frameworks and drivers keep what they have compiled and timed for the next process of the same
user: what an earlier run took minutes for, a later one would find. Each process of a run has a
folder of its own for all of it, on its node, so that what it compiles it is charged for.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from aiperf_hpc.errors import AIPerfError, reason_of
from aiperf_hpc.system.software import KERNEL_CACHES


@contextmanager
def own_kernel_caches(environment: MutableMapping[str, str]) -> Iterator[Path]:
    """Let what is loaded next keep compiled kernels in a new folder while the block runs.

    Args:
        environment: of this process, in which the variables of each cache are set; what they were
            is of no matter.

    Raises:
        AIPerfError: there is no room for a folder where temporary files are.
    """
    try:
        folder = TemporaryDirectory(prefix="aiperf-hpc-kernels-", ignore_cleanup_errors=True)
    except OSError as error:
        raise AIPerfError(
            f"cannot make a folder for compiled kernels: {reason_of(error)}; "
            "set TMPDIR to a folder on the node that can be written"
        ) from None
    with folder as name:
        for variable, inside in KERNEL_CACHES.items():
            environment[variable] = str(Path(name) / inside)
        yield Path(name)
