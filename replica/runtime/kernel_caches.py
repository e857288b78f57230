"""Empty cache folders for compiled and tuned kernels.

Frameworks and drivers cache compiled and tuned kernels for later processes of the same user, so a
second run would start faster than the first. Each process of a run therefore has a new cache
folder on its node, and every run is charged for its compilations.
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
    """Direct the kernel caches of frameworks loaded later to a new folder while the block runs.

    Args:
        environment: environment of this process; the variables of each cache are overwritten.

    Raises:
        AIPerfError: the folder cannot be created in TMPDIR.
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
