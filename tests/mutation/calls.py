"""A pytest plugin that records which functions each test calls, how long it takes, and failures."""

from __future__ import annotations

import cProfile
import json
import os
import threading
import time
from collections.abc import Generator
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any, TypedDict

import pytest


class TracedTest(TypedDict):
    """What a test does."""

    seconds: float
    """Processor time, which other work on the machine does not change."""
    calls: list[str]
    """``path:qualified name`` of each function, with its path from the repository's root."""


Trace = dict[str, TracedTest]


class Calls:
    """Writes ``{"failed": [test, ...], "tests": Trace}``.

    Failed and skipped tests are not among ``tests``. Functions that a test calls in other processes
    are not seen.
    """

    def __init__(self, results: Path, checkout: Path | None) -> None:
        self.results, self.checkout = results, checkout
        """Nothing is traced without a checkout."""
        self.failed: list[str] = []
        self.left_out: set[str] = set()
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, list[str]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        if not self.checkout:
            return (yield)
        started, profiles = time.process_time(), [cProfile.Profile(builtins=False)]

        def begin(*_: object) -> None:
            profiles.append(cProfile.Profile(builtins=False))
            profiles[-1].enable()

        threading.setprofile(begin)
        profiles[0].enable()
        try:
            return (yield)
        finally:
            profiles[0].disable()
            threading.setprofile(None)
            self.seconds[item.nodeid] = time.process_time() - started
            codes = {entry.code for profile in profiles for entry in profile.getstats()}
            self.calls[item.nodeid] = sorted(filter(None, map(self._name, codes)))

    def _name(self, code: CodeType | str) -> str:
        if isinstance(code, str) or not code.co_filename.startswith(str(self.checkout)):
            return ""
        return f"{real(code.co_filename).removeprefix(f'{self.checkout}/')}:{code.co_qualname}"

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)
        if not report.passed:
            self.left_out.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        tests = {
            test: {"seconds": seconds, "calls": self.calls.get(test, [])}
            for test, seconds in self.seconds.items()
            if test not in self.left_out
        }
        self.results.write_text(json.dumps({"failed": self.failed, "tests": tests}), "utf-8")


real = cache(os.path.realpath)
"""Resolves links: packages are linked into ``src``."""
