"""All-reduce benchmark of one backend.

    python -m aiperf_hpc.replica.parallel.allreduce_timing

The communication benchmark of MLBench's task 0: tensors of ``np.logspace(0, 8, num=80)`` elements
in float32 and float16 are reduced repeatedly, with the same calls as in training. Started by
``aiperf allreduce`` or srun; rank 0 writes JSON.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
from numpy.typing import NDArray

from aiperf_hpc.errors import AIPerfError, EngineError
from aiperf_hpc.replica.parallel.binding import share_cores
from aiperf_hpc.replica.parallel.collectives import CLASSES, Buffer, Collective, join
from aiperf_hpc.run.paths import write_whole
from aiperf_hpc.streams import print_in_any_locale, warn

COPIES = 4
"""Maximum number of buffers of a rank: the tensor, its sum, and the backend's own buffers."""
WARM_UP = 3
NO_HALF = "MPI has no floating-point type of 16 bits"


class Memory(NamedTuple):
    """A memory (host or device) with functions to create tensors in it."""

    name: str
    make: Callable[[int, str], Buffer]
    """Creates a tensor of ones with a number of elements and a type."""
    finish: Callable[[], None]
    """Waits for the device."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit status."""
    print_in_any_locale()
    parser = argparse.ArgumentParser(prog="aiperf_hpc.replica.parallel.allreduce_timing")
    parser.add_argument("--collective", choices=CLASSES, required=True)
    parser.add_argument("--repetitions", type=int, default=100)
    parser.add_argument("--largest", type=float, default=1e8, help="elements")
    parser.add_argument("--only-largest", action="store_true", help="no smaller sizes")
    parser.add_argument("--result", type=Path, required=True, help="a file for the JSON")
    options = parser.parse_args(arguments)
    try:
        collective = join(options.collective)
    except AIPerfError as error:
        warn(error)
        return error.exit_status
    share_cores(collective)
    measured, skipped = [], []
    for memory in memories(collective):
        for dtype in ("float32", "float16"):
            if (collective.name, dtype) == ("mpi", "float16"):
                skipped.append({"memory": memory.name, "dtype": dtype, "reason": NO_HALF})
                continue
            most = _most_elements(collective, dtype)
            for elements in sizes(options.largest)[-1 if options.only_largest else 0 :]:
                if elements > most:
                    reason = f"more than {most} elements do not fit in memory"
                    skipped.append({"memory": memory.name, "dtype": dtype, "reason": reason})
                    break
                seconds = repeat(collective, memory, elements, dtype, options.repetitions)
                measured.append(
                    {
                        "memory": memory.name,
                        "dtype": dtype,
                        "elements": elements,
                        **figures(elements * np.dtype(dtype).itemsize, collective.size, seconds),
                    }
                )
    if collective.rank == 0:
        result = {
            "collective": collective.name,
            "ranks": collective.size,
            "host": socket.gethostname(),
            "repetitions": options.repetitions,
            "measurements": measured,
            "skipped": skipped,
        }
        write_whole(options.result, json.dumps(result))
    collective.close()
    return 0


def sizes(largest: float) -> list[int]:
    """Return MLBench's numbers of elements up to a maximum; the smallest ones repeat."""
    return [int(number) for number in np.logspace(0, 8, num=80) if number <= largest]


def figures(size: int, ranks: int, seconds: NDArray[np.float64]) -> dict[str, float]:
    """Return the median time and the bandwidths in bytes/s as nccl-tests defines them.

    The algorithm bandwidth is the tensor's size over the time. The bus bandwidth, 2 (n - 1) / n
    times as much for n ranks, is comparable with that of the hardware's links.
    """
    median = float(np.median(seconds))
    return {
        "bytes": size,
        "seconds": median,
        "fastest_seconds": float(seconds.min()),
        "slowest_seconds": float(seconds.max()),
        "algorithm_bandwidth": size / median,
        "bus_bandwidth": size / median * 2 * (ranks - 1) / ranks,
    }


def repeat(
    collective: Collective, memory: Memory, elements: int, dtype: str, repetitions: int
) -> NDArray[np.float64]:
    """Return the duration of each repetition in seconds, averaged over the ranks.

    Raises:
        EngineError: a sum is wrong.
    """
    seconds = np.zeros(repetitions)
    given = memory.make(elements, dtype)
    for number in range(-WARM_UP, repetitions):
        collective.barrier()  # Exclude the delays of other ranks from the time.
        memory.finish()
        begun = time.perf_counter()
        total = collective.start_allreduce_sum(given)()
        memory.finish()
        if number >= 0:
            seconds[number] = time.perf_counter() - begun
        if number == -WARM_UP:
            _check(total, collective.size)
            given = memory.make(elements, dtype)  # Some back ends sum in place.
    collective.allreduce_sum(seconds)
    return seconds / collective.size


def _check(total: Buffer, ranks: int) -> None:
    ends = [float(total[0]), float(total[-1])]
    if ends != [ranks, ranks]:
        raise EngineError(
            f"the sum of {ranks} ones is {ends[0]:g} at one end, {ends[1]:g} at the other"
        )


def _most_elements(collective: Collective, dtype: str) -> int:
    """Return the number of elements that fit in the host's memory, equal on every rank."""
    free = psutil.virtual_memory().available / collective.local_size / COPIES
    least = collective.gather(np.array([free], np.float64)).min()
    return int(least / np.dtype(dtype).itemsize)


def memories(collective: Collective) -> Iterator[Memory]:
    """Yield the memories whose tensors a backend can reduce."""
    match collective.name:
        case "torch":
            yield from _torch_memories(collective.local_rank)
        case "horovod":
            yield from _tensorflow_memories(collective.local_rank)
        case _:
            yield Memory("cpu", lambda elements, dtype: np.ones(elements, dtype), _nothing)


def _nothing() -> None:
    """Return immediately: operations on host memory are synchronous."""


def _torch_memories(local_rank: int) -> Iterator[Memory]:
    import torch

    def on(device: str) -> Callable[[int, str], Any]:
        return lambda elements, dtype: torch.ones(
            elements, dtype=getattr(torch, dtype), device=device
        )

    yield Memory("cpu", on("cpu"), _nothing)
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank % torch.cuda.device_count())
        yield Memory("accelerator", on("cuda"), torch.cuda.synchronize)


def _tensorflow_memories(local_rank: int) -> Iterator[Memory]:
    from aiperf_hpc.replica.tensorflow_import import tf

    def on(device: str) -> Callable[[int, str], Any]:
        def make(elements: int, dtype: str) -> Any:  # noqa: ANN401 -- a tensor
            with tf.device(device):
                return tf.ones(elements, dtype)

        return make

    yield Memory("cpu", on("CPU:0"), _nothing)
    accelerators = tf.config.list_physical_devices("GPU")
    if accelerators:
        number = local_rank % len(accelerators)
        yield Memory("accelerator", on(f"GPU:{number}"), tf.test.experimental.sync_devices)


if __name__ == "__main__":
    sys.exit(main())
