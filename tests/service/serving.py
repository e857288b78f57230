"""The service in process, for tests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from fastapi.testclient import TestClient
from tests.service.conftest import SHOWN, TOKEN
from tests.support.waiting import PATIENCE_SECONDS

from aiperf_hpc.service.access import Policy
from aiperf_hpc.service.app import create_app
from aiperf_hpc.service.endpoint import Tokens
from aiperf_hpc.service.run_queue import Primaries, RunQueue
from aiperf_hpc.service.runs import FolderOfRuns, Runs
from aiperf_hpc.service.served_run import Readers


@contextmanager
def serving(runs: Runs) -> Iterator[TestClient]:
    """Serve runs in this process while the block runs."""
    with runs.served(), TestClient(create_app(runs), base_url="http://127.0.0.1") as client:
        yield client


def serving_folder(folder: Path) -> AbstractContextManager[TestClient]:
    """Serve the runs in a folder, each of which is waited for until it is read."""
    return serving(FolderOfRuns(folder, Readers(PATIENCE_SECONDS, PATIENCE_SECONDS)))


@contextmanager
def serving_queue(
    folder: Path,
    primaries: Primaries | None = None,
    log: Callable[[str], None] = lambda _: None,
) -> Iterator[TestClient]:
    """Serve the runs in a folder and their queue to a client that may change them."""
    runs = FolderOfRuns(folder, Readers(PATIENCE_SECONDS, PATIENCE_SECONDS))
    queue = RunQueue(folder, primaries, log)
    app = create_app(runs, Policy(Tokens([TOKEN])), log, queue)
    client = TestClient(app, base_url="http://127.0.0.1", headers=SHOWN)
    with queue.working(), runs.served(), client:
        yield client


@contextmanager
def serving_process(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Serve a folder by a process of its own; yield it and its URL. It logs to standard error."""
    code = (
        "import sys; from pathlib import Path;"
        "from aiperf_hpc.service.runs import runs_in;"
        "from aiperf_hpc.service.endpoint import Endpoint;"
        "from aiperf_hpc.service.server import serve;"
        "serve(runs_in(Path(sys.argv[1])), Endpoint(), lambda u: print(u, flush=True),"
        " lambda line: print(line, file=sys.stderr))"
    )
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()
