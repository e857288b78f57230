"""A command that is ended by a signal ends in order, and so does the one it has started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from aiperf_hpc.host.processes import Interruption, ending_signals, interruptible, run_to_its_end

CHILD = """
import signal, sys, time
from aiperf_hpc.host.processes import Interruption, interruptible
print("up", flush=True)
while not signal.sigpending():
    time.sleep(0.01)  # As while Python and its packages are loaded, which nothing interrupts.
try:
    with interruptible():
        sys.exit("the signal is lost")
except Interruption as interruption:
    print("in order", flush=True)
    sys.exit(interruption.exit_status)
"""
PARENT = (
    "import sys; from aiperf_hpc.host.processes import *; sys.exit(run_to_its_end(sys.argv[1:]))"
)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_command_hears_a_signal_once_it_can_end_in_order(number: signal.Signals) -> None:
    command = [sys.executable, "-c", PARENT, sys.executable, "-c", CHILD]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "up\n"
        parent.send_signal(number)
        assert parent.stdout.read() == "in order\n"
    assert parent.returncode == 128 + number


def test_the_first_signal_interrupts_and_those_that_follow_do_not() -> None:
    cleared = []
    before = signal.getsignal(signal.SIGTERM)

    def end_and_clear() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            for number in ending_signals():
                os.kill(os.getpid(), number)
            cleared.append(True)

    with pytest.raises(Interruption) as caught, interruptible():
        end_and_clear()
    assert cleared
    assert caught.value.exit_status == 143
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_after_the_interruption_does_not_disturb_the_exit() -> None:
    """A terminal's Ctrl-C reaches a command and what it runs, to which the command passes it on."""
    code = """
import os, signal
from aiperf_hpc.host.processes import Interruption, interruptible
try:
    with interruptible(exits=True):
        os.kill(os.getpid(), signal.SIGINT)
except Interruption as interruption:
    os.kill(os.getpid(), signal.SIGINT)
    raise SystemExit(interruption.exit_status)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "")


def test_nohup_is_respected() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_status_of_a_command() -> None:
    assert run_to_its_end([sys.executable, "-c", "raise SystemExit(3)"]) == 3
    kill = "import os; os.kill(os.getpid(), 9)"
    assert run_to_its_end([sys.executable, "-c", kill]) == 137
    with pytest.raises(FileNotFoundError):
        run_to_its_end(["/does/not/exist"])
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
