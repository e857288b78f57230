"""A process beside this one that compiles networks, so that this one finds them compiled.

To trace and to lower a network is up to minutes of Python, whose lock a thread of this process
would take from the one that launches the steps of a training. Both processes keep what they compile
in one folder, that of ``runtime/kernel_caches.py``.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import weakref
from contextlib import suppress

import psutil

from aiperf_hpc.config import EngineConfig
from aiperf_hpc.trial import Value

LIMIT_SECONDS = 600.0
"""The longest compilation that is waited for: a network as large as those of a search takes one or
two minutes."""


class CompileRequest(Value):
    """What is to be compiled: the training step's and the evaluation's code of a network."""

    graph: str
    """As JSON."""
    precision: str
    samples: int
    """Of a batch."""


class CompileAnswer(Value):
    """What became of a request."""

    error: str = ""
    """One line; nothing where it is compiled."""


class Compiler:
    """The process; it is started by the first request, and ends with this object or this process.

    For one thread at a time.
    """

    def __init__(self, cores: int, device: int, settings: EngineConfig, ranks: int) -> None:
        """Start nothing yet.

        Args:
            cores: the threads that compiled code computes on, where it computes on CPUs.
            device: which of the host's accelerators it is for, where there are any.
            settings: those of the engine whose networks are compiled.
            ranks: those that train one network together.
        """
        self._command = [sys.executable, "-m", f"{__package__}.compiler_process"]
        self._command += ["--cores", str(cores), "--device", str(device)]
        self._command += ["--ranks", str(ranks)]
        self._command += ["--settings", settings.model_dump_json()]
        self._process: subprocess.Popen[str] | None = None

    def compile(self, request: CompileRequest) -> str:
        """Wait until it is compiled, or until the time limit; return why it is not, or nothing.

        Then whoever executes the network compiles it, which standard error says too.
        """
        problem = self._ask(request)
        if problem:
            sys.stderr.write(f"aiperf: the next network is compiled beside its steps: {problem}\n")
            sys.stderr.flush()
        return problem

    def _ask(self, request: CompileRequest) -> str:
        """Return what went wrong."""
        process = self._process = self._process or self._started()
        assert process.stdin is not None  # noqa: S101 -- it is a pipe
        assert process.stdout is not None  # noqa: S101 -- it is a pipe
        expired = threading.Event()

        def expire() -> None:
            expired.set()
            _kill_tree(process)

        # A process that hangs may read no request, too: its end ends both waits.
        timer = threading.Timer(LIMIT_SECONDS, expire)
        timer.start()
        try:
            process.stdin.write(request.model_dump_json() + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if not line:
            self._process = None  # The next request starts another one.
            if expired.is_set():
                process.wait()
                return f"the process that compiles was ended after {LIMIT_SECONDS:g} s"
            return f"the process that compiles ended with status {process.wait()}"
        return CompileAnswer.model_validate_json(line).error

    def _started(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
        )
        weakref.finalize(self, _end, process)
        return process


def _kill_tree(process: subprocess.Popen[str]) -> None:
    """End a process and those that it started, such as a C compiler that hangs."""
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.kill()
    process.kill()


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    with process:  # Waits, and closes its pipes.
        pass
