"""How the local launcher starts its replicas."""

from __future__ import annotations

import signal
import subprocess
import time
from importlib import util

import pytest

from aiperf_hpc.errors import UsageError
from aiperf_hpc.primary.launch import DEAF, STOP_SIGNAL, rank_starter


def test_a_command_that_is_not_listening_yet_outlives_the_stop_signal() -> None:
    for before, status in ((DEAF, 0), ((), -signal.SIGUSR1)):
        process = subprocess.Popen([*before, "sleep", "1"])
        time.sleep(0.3)
        process.send_signal(STOP_SIGNAL)
        assert process.wait() == status


@pytest.mark.parametrize(
    ("collective", "words"),
    [
        ("mpi", r"needs the package 'mpi4py': .*pip install '.\[mpi\]' in /"),
        ("torch", r"needs the package 'torch': .*pip install '.\[torch\]' in /"),
        ("horovod", "needs the package 'horovod': build it with `make horovod`"),
    ],
)
def test_a_collective_that_is_not_installed_starts_nothing(
    collective: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(util, "find_spec", lambda _: None)
    assert rank_starter(1, collective) == []
    with pytest.raises(UsageError, match=f"collective '{collective}' {words}"):
        rank_starter(2, collective)
