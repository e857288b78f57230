"""Which launcher a run gets: one for this machine, or one of a scheduler of ``SCHEDULERS``."""

from __future__ import annotations

import importlib
import sys

from aiperf_hpc.host.schedulers import SCHEDULERS, Scheduler
from aiperf_hpc.primary.launchers.backend import Backend, Choice, LocalBackend, Request


def load(scheduler: Scheduler) -> Backend:
    """Return the back end of a scheduler."""
    backend: Backend = importlib.import_module(scheduler.backend).BACKEND
    return backend


def backend_of(launcher: str) -> Backend:
    """Return what launches by the launcher of this name."""
    found = (load(each) for each in SCHEDULERS if launcher in each.launchers)
    return next(found, LocalBackend())


def choose_launcher(request: Request) -> Choice:
    """Return the launcher for a request, once it can carry it out.

    ``auto`` is the first scheduler that is there, else this machine, and says which and why.

    Raises:
        UsageError: the scheduler is not there, does not answer, or lacks what is requested.
    """
    if request.launcher != "auto":
        return backend_of(request.launcher).choose(request)
    choice = Choice(request)
    for scheduler in SCHEDULERS:
        choice = load(scheduler).choose(request)
        if choice.launcher != "local":
            break
    sys.stderr.write(f"aiperf: --launcher auto: {choice.launcher}: {choice.why}\n")
    return choice
