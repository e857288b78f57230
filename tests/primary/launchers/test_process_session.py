"""A replica's session ends with all its processes, whatever groups they are in."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from tests.support.processes import MAY_HAVE_ENDED, alive

from aiperf_hpc.errors import UsageError
from aiperf_hpc.host.processes import end_session, run_in_session

FAMILY = """
import os, subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
children = [subprocess.Popen(sleep), subprocess.Popen(sleep, process_group=0)]
print(*(child.pid for child in children), flush=True)
time.sleep(600)
"""


def test_a_session_ends_with_all_its_groups_and_no_other_does() -> None:
    own = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    leader = subprocess.Popen(
        [sys.executable, "-c", FAMILY], stdout=subprocess.PIPE, start_new_session=True
    )
    assert leader.stdout is not None
    children = [int(pid) for pid in leader.stdout.readline().split()]
    leader.stdout.close()
    try:
        assert len({os.getpgid(pid) for pid in (leader.pid, *children)}) == 2
        leader.kill()  # Whoever led it may be dead already.
        leader.wait()
        end_session(leader.pid)
        assert not [pid for pid in children if alive(pid)]
        assert own.poll() is None
    finally:
        for pid in (own.pid, *children):
            with MAY_HAVE_ENDED:
                os.kill(pid, signal.SIGKILL)
        own.wait()


def test_a_session_that_is_gone_is_nothing_to_end() -> None:
    with subprocess.Popen(["true"], start_new_session=True) as process:
        process.wait()
    begun = time.monotonic()
    end_session(process.pid)
    assert time.monotonic() - begun < 5.0


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import sys; sys.exit('aiperf: no such folder\\nlibrary: bye')", "no such folder"),
        ("raise ValueError('seven')", "ValueError: seven"),
        ("raise SystemExit(3)", "it ended with status 3"),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
            "it was ended by SIGKILL; the kernel does so when memory is exhausted",
        ),
    ],
)
def test_why_a_program_failed(program: str, reason: str) -> None:
    with pytest.raises(UsageError, match=f"^training: {reason}"):
        run_in_session([sys.executable, "-c", program], failed="training: ")


def test_a_program_that_does_not_end_in_time_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^the sleep did not end within 0\.2 s$"):
        run_in_session(["sleep", "60"], 0.2, late="the sleep did not end within {:g} s")


def test_a_program_reads_what_it_is_given() -> None:
    assert run_in_session([sys.executable, "-c", "print(input())"], given="steps\n") == "steps\n"
