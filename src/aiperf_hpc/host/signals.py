"""Ending by a signal in order: what was begun is cleared away, and nothing interrupts that."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, TextIO

Handler = Callable[[int, FrameType | None], None]


class Interruption(KeyboardInterrupt):
    """A signal asked this process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_status = 128 + number


class Interrupts:
    """How often the user has asked for the end: the first time in order, then at once.

    A signal's handler only counts. It may come between any two instructions of a thread that
    prints or holds a lock.
    """

    def __init__(self) -> None:
        self.count = 0
        self.how = ""
        """What the user did, in words."""

    def received(self, number: int, _: FrameType | None) -> None:
        """Count a signal."""
        self.how = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        self.count += 1

    def at_once(self) -> bool:
        """Return whether everything is to end now."""
        return self.count > 1


def ending_signals() -> tuple[signal.Signals, ...]:
    """Return those that ask to end; without SIGHUP where ``nohup`` has it ignored."""
    deaf = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return (signal.SIGINT, signal.SIGTERM, *(() if deaf else (signal.SIGHUP,)))


@contextmanager
def interruptible(*, exits: bool = False) -> Iterator[None]:
    """Raise an Interruption in the block at the first signal; ignore those that follow.

    Args:
        exits: whether the process exits after an interruption. The signals are then ignored until
            its end: a Ctrl-C that ``run_to_its_end`` passes on comes a second time, maybe late.
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
        # Who started this process may have held them back until now.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
        yield
    finally:
        if not (exits and interrupted):
            _restore(numbers, before)


def run_to_its_end(command: Sequence[str], output: TextIO | None = None) -> int:
    """Run a command whose process is ``interruptible``; return its status, as a shell does.

    Signals that this process gets are passed on to it. (A terminal's Ctrl-C it gets by itself
    too, and ignores the second one.) It gets none before it can end in order.

    Args:
        command: the program with its arguments.
        output: where what it prints goes; where this process prints when not given.
    """
    numbers = ending_signals()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        process = subprocess.Popen(
            command, stdout=output
        )  # What is held back here is held back there.
    except BaseException:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        raise
    with process, handled(numbers, lambda number, _: process.send_signal(number)):
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        status = process.wait()
    return status if status >= 0 else 128 - status


@contextmanager
def withheld() -> Iterator[None]:
    """Hold the signals back that ask to end; what is started in the block inherits that."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ending_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def handled(numbers: Sequence[signal.Signals], handler: Handler) -> Iterator[None]:
    """Let a handler have these signals while the block runs."""
    before = [signal.signal(number, handler) for number in numbers]
    try:
        yield
    finally:
        _restore(numbers, before)


def _restore(numbers: Sequence[signal.Signals], handlers: Sequence[Any]) -> None:
    for number, handler in zip(numbers, handlers, strict=True):
        signal.signal(number, handler)


def _ignored(_: int, __: FrameType | None) -> None:
    """Not SIG_IGN, which the processes that are started would inherit."""
