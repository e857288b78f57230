"""Several ranks of one network, as threads of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.replica.parallel.threads import Table, Threads
from tests.support.waiting import PATIENCE_SECONDS

from aiperf_hpc.replica.data.base import Dataset
from aiperf_hpc.replica.engines.base import RankEngine
from aiperf_hpc.replica.parallel.follower import follow
from aiperf_hpc.replica.parallel.protocol import Command, announce


@contextmanager
def followed(ranks: int, engine: Callable[[], RankEngine], data: Dataset) -> Iterator[Threads]:
    """Give rank 0's collective; the others do what it announces until the block is left.

    Args:
        ranks: how many there are, rank 0 among them.
        engine: makes that of a rank that follows.
        data: what all of them read.
    """
    table = Table(ranks)
    own, *others = (Threads(table, rank, ranks) for rank in range(ranks))
    threads = [threading.Thread(target=follow, args=(engine(), data, each)) for each in others]
    for thread in threads:
        thread.start()
    try:
        yield own
    except BaseException:
        table.barrier.abort()
        raise
    announce(own, Command.END)
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()
