"""How the local launcher starts its replicas."""

from __future__ import annotations

import signal
import subprocess
import time

from aiperf_hpc.primary.launch import DEAF, STOP_SIGNAL


def test_a_command_that_is_not_listening_yet_outlives_the_stop_signal() -> None:
    for before, status in ((DEAF, 0), ((), -signal.SIGUSR1)):
        process = subprocess.Popen([*before, "sleep", "1"])
        time.sleep(0.3)
        process.send_signal(STOP_SIGNAL)
        assert process.wait() == status
