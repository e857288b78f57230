"""Graceful shutdown on signals: cleanup is not interrupted."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, TextIO

Handler = Callable[[int, FrameType | None], None]


class Interruption(KeyboardInterrupt):
    """A signal requested the end of this process."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_status = 128 + number


class Interrupts:
    """Number of the user's requests to stop: the first is graceful, the second immediate.

    The signal handler only counts, because it may run between any two instructions of a thread that
    prints or holds a lock.
    """

    def __init__(self) -> None:
        self.count = 0
        self.how = ""
        """The last request in words, such as Ctrl-C."""

    def received(self, number: int, _: FrameType | None) -> None:
        """Count a signal."""
        self.how = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        self.count += 1

    def at_once(self) -> bool:
        """Return whether to stop immediately."""
        return self.count > 1


def ending_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that request the end of a process, without SIGHUP under ``nohup``."""
    deaf = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return (signal.SIGINT, signal.SIGTERM, *(() if deaf else (signal.SIGHUP,)))


@contextmanager
def interruptible(*, exits: bool = False) -> Iterator[None]:
    """Raise an Interruption in the block on the first signal; ignore further signals.

    Args:
        exits: whether the process exits after an interruption. Signals are then ignored until its
            end, because a Ctrl-C forwarded by ``run_to_its_end`` may arrive a second time, late.
    """
    numbers = ending_signals()
    interrupted = False

    def ended(number: int, _: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        for each in numbers:
            signal.signal(each, _ignored)
        raise Interruption(number)

    before = [signal.signal(number, ended) for number in numbers]
    try:
        # The parent process may have blocked the signals until now.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
        yield
    finally:
        if not (exits and interrupted):
            _restore(numbers, before)


def run_to_its_end(command: Sequence[str], output: TextIO | None = None) -> int:
    """Run a command whose process is ``interruptible``; return its status as a shell would.

    Signals to this process are forwarded to the command. (It also receives a terminal's Ctrl-C
    directly and ignores the second one.) Signals are blocked until it can shut down gracefully.

    Args:
        command: program with its arguments.
        output: standard output of the command; that of this process by default.
    """
    numbers = ending_signals()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        process = subprocess.Popen(command, stdout=output)  # It inherits the blocked signals.
    except BaseException:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        raise
    with process, handled(numbers, lambda number, _: process.send_signal(number)):
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        status = process.wait()
    return status if status >= 0 else 128 - status


@contextmanager
def withheld() -> Iterator[None]:
    """Block the signals that request the end; processes started in the block inherit that."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ending_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def handled(numbers: Sequence[signal.Signals], handler: Handler) -> Iterator[None]:
    """Install a handler for the signals during the block."""
    before = [signal.signal(number, handler) for number in numbers]
    try:
        yield
    finally:
        _restore(numbers, before)


def _restore(numbers: Sequence[signal.Signals], handlers: Sequence[Any]) -> None:
    for number, handler in zip(numbers, handlers, strict=True):
        signal.signal(number, handler)


def _ignored(_: int, __: FrameType | None) -> None:
    """Ignore a signal. Not SIG_IGN, because child processes would inherit that."""
