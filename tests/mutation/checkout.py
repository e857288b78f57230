"""A copy of the working tree in which tests run on mutants, in forked processes."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path

import pytest
from tests.mutation.calls import Calls, Trace
from tests.mutation.mutants import Mutant

ROOT = Path(__file__).resolve().parents[2]
OURS = (str(ROOT), str(ROOT / "src"))
os.environ["OPENBLAS_NUM_THREADS"] = "1"
PRELOADED = (
    "cryptography.x509", "fastapi", "hypothesis", "jinja2", "matplotlib.figure", "msgspec", "numpy",
    "optuna", "psutil", "pydantic", "pytest_cov.plugin", "pytest_timeout", "rfc3161_client",
    "rich.live", "safetensors.numpy", "schemathesis", "scipy.optimize", "scipy.stats", "torch",
    "typer", "xdist.plugin", "yaml",
)  # fmt: skip
"""Packages that each forked process has from the start."""
MEMORY = 8 << 30
"""Limit of a test process, in bytes: a mutated loop may have no end."""


@dataclass(frozen=True)
class Outcome:
    """Result of a run of pytest."""

    passed: bool
    failed: tuple[str, ...]
    """Tests, or files that cannot be imported; empty if pytest had to be killed."""
    trace: Trace


class Checkout:
    """A copy of the working tree.

    Raises:
        CalledProcessError: If git cannot list its files.
    """

    def __init__(self, folder: Path) -> None:
        for name in PRELOADED:
            import_module(name)
        self.folder = folder / "checkout"
        self.log = folder / "log"
        self._results = folder / "results.json"
        self._mutated = 0
        self._reliable: set[str] = set()
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip
        for name in listed.split("\0"):
            if not name or not os.path.lexists(ROOT / name):
                continue
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, self.folder / name, follow_symlinks=False)

    def pytest(self, tests: Sequence[str], seconds: float, *options: str) -> Outcome:
        """Run tests in a forked process, and trace them if there are no options."""
        self._results.unlink(missing_ok=True)
        process = get_context("fork").Process(target=self._child, args=([*options, *tests],))
        process.start()
        process.join(seconds)
        if process.is_alive():
            os.killpg(process.pid or 0, signal.SIGKILL)
            process.join()
        written = json.loads(self._results.read_text()) if self._results.exists() else {}
        failed = tuple(written.get("failed", ()))
        return Outcome(process.exitcode == 0, failed, written.get("tests", {}))

    def _child(self, arguments: list[str]) -> None:
        os.setsid()
        log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        os.chdir(self.folder)
        source = str(self.folder / "src")
        sys.path[:] = [str(self.folder), source, *(p for p in sys.path if p not in OURS)]
        os.environ["PYTHONPATH"] = source
        for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
            del sys.modules[name]
        traced = None if "-x" in arguments else self.folder
        common = ["-q", "-p", "no:cacheprovider", "--basetemp", str(self.folder.parent / "tmp")]
        common += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # Of preloaded packages.
        os._exit(pytest.main([*common, *arguments], [Calls(self._results, traced)]))

    @contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        """Mutate a module for a while.

        Python recompiles a module whose time of modification differs, in whole seconds.
        """
        path = self.folder / mutant.module
        source, state = path.read_text("utf-8"), path.stat()
        self._mutated += 1
        path.write_text(mutant.apply(source), "utf-8")
        os.utime(path, (self._mutated, self._mutated))
        try:
            yield
        finally:
            path.write_text(source, "utf-8")
            os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))

    def killed(self, mutant: Mutant, tests: Sequence[str], seconds: Sequence[float]) -> str:
        """Return a test, or a file of tests, that fails for a mutant twice and passes without it.

        The second time it runs without the others. Empty if there is none.

        Raises:
            RuntimeError: If pytest cannot run the tests: the trace may be of other ones.
        """
        limit = 120 + 5 * sum(seconds)
        options = ("-x", "--timeout", str(30 + 10 * max(seconds, default=0)))
        while tests:
            with self.mutated(mutant):
                outcome = self.pytest(tests, limit, *options)
            if outcome.passed:
                return ""
            failed = tuple(outcome.failed) or tuple(tests)
            suspects = [test for test in tests if test.startswith(failed)]
            with self.mutated(mutant):
                alone = self.pytest(suspects, limit, *options)
            if alone.passed:  # By chance, or because of other tests.
                tests = [test for test in tests if test not in suspects]
                continue
            if self._reliable.issuperset(suspects):
                return failed[0]
            without = self.pytest(suspects, limit, *options)
            if without.passed:
                self._reliable.update(suspects)
                return failed[0]
            if not without.failed:
                raise RuntimeError(f"pytest cannot run:\n{self.log.read_text('utf-8')[-2000:]}")
            tests = [test for test in tests if not test.startswith(tuple(without.failed))]
        return ""
