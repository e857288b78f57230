"""Sampled mutation testing of the code that decides a score.

    python -m tests.mutation.sample [--number 200] [--seed 1] [--jobs 2] [--report FILE.json]

Each mutation changes one operator, condition or number in a copy of the checkout. The tests that
execute its line are run, the most specific ones first, until one fails. Prints a line for each
mutation and the fraction that the tests found. ``MODULES`` and ``TESTS`` select them.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue

from coverage import CoverageData

ROOT = Path(__file__).resolve().parents[2]
MODULES = {
    "counting": ("ops_counter/*.py",),
    "rules": ("rules/validity/*.py", "rules/consistency/*.py"),
    "journals": ("src/aiperf_hpc/run/journal.py", "src/aiperf_hpc/run/search_digest.py"),
    "history": ("src/aiperf_hpc/run/history/*.py",),
    "credit": ("replica/training/credit.py", "replica/training/schedule.py"),
    "morphisms": ("morphism/operators/*.py",),
}
"""Glob patterns of the mutated modules. Each subject gets an equal part of the sample."""
TESTS = (
    "tests/ops_counter", "tests/rules", "tests/verification", "tests/run", "tests/core",
    "tests/forgery", "tests/morphism", "tests/replica/training", "tests/results/views",
    "tests/workloads",
)  # fmt: skip
SPECIFIC = 25
"""Tests that are run first: those that execute the fewest lines."""
SECONDS = 600
"""Limit of the tests of one mutation; a mutation that exceeds it counts as found."""

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div, ast.Mod: ast.Mult, ast.Pow: ast.Mult,
}  # fmt: skip


@dataclass(frozen=True)
class Mutation:
    """One change of a module."""

    subject: str
    module: str
    line: int
    index: int
    """Position among the module's possible mutations."""
    change: str


@dataclass(frozen=True)
class Outcome:
    """Result of a mutation's tests."""

    mutation: Mutation
    found: bool
    tests: int
    """Number of tests that execute the mutated line."""
    by: str
    """Last line of pytest's output."""


def mutations(tree: ast.AST) -> Iterator[tuple[ast.AST, str, ast.AST]]:
    """Yield each possible mutation of ``tree``: its node, a description, and the new node."""
    for node in _executed(tree):
        match node:
            case ast.Compare(ops=[operator]) if type(operator) in COMPARISONS:
                new = COMPARISONS[type(operator)]()
                yield (
                    node, f"{type(operator).__name__} to {type(new).__name__}",
                    ast.Compare(node.left, [new], node.comparators),
                )  # fmt: skip
            case ast.BinOp() if type(node.op) in ARITHMETIC:
                changed = ARITHMETIC[type(node.op)]()
                yield (
                    node, f"{type(node.op).__name__} to {type(changed).__name__}",
                    ast.BinOp(node.left, changed, node.right),
                )  # fmt: skip
            case ast.BoolOp():
                other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
                yield node, f"to {type(other).__name__}", ast.BoolOp(other, node.values)
            case ast.UnaryOp(op=ast.Not()):
                yield node, "not removed", node.operand
            case ast.If() | ast.IfExp():
                test = ast.UnaryOp(ast.Not(), node.test)
                fields = {name: value for name, value in ast.iter_fields(node) if name != "test"}
                yield node, "condition inverted", type(node)(test=test, **fields)
            case ast.Constant(value=bool() as value):
                yield node, f"{value} to {not value}", ast.Constant(not value)
            case ast.Constant(value=int() | float() as number):
                yield node, f"{number} to {number + 1}", ast.Constant(number + 1)


def _executed(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of ``tree`` except annotations, decorators and the indices of types."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list", "bases", "keywords", "slice") and (
            not isinstance(tree, ast.Call)
        ):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield child
                yield from _executed(child)


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        visited: ast.AST = self.new if node is self.old else self.generic_visit(node)
        return visited


def mutated(source: str, index: int) -> str:
    """Return ``source`` with its mutation number ``index``."""
    tree = ast.parse(source)
    old, _, new = list(mutations(tree))[index]
    return ast.unparse(ast.fix_missing_locations(_Replace(old, new).visit(tree)))


def sample(number: int, seed: int) -> list[Mutation]:
    """Draw ``number`` mutations, equally many of each subject."""
    drawing = random.Random(seed)
    chosen: list[Mutation] = []
    for subject, patterns in MODULES.items():
        possible = [
            Mutation(subject, str(path.relative_to(ROOT)), getattr(node, "lineno", 0), index, text)
            for pattern in patterns
            for path in sorted(ROOT.glob(pattern))
            for index, (node, text, _) in enumerate(mutations(ast.parse(path.read_text())))
        ]
        chosen += drawing.sample(possible, min(len(possible), -(-number // len(MODULES))))
    return chosen[:number]


class Copy:
    """A copy of the checkout in which tests are run."""

    def __init__(self, folder: Path) -> None:
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout  # fmt: skip
        for name in filter(None, listed.split("\0")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
        if (shared := ROOT.parent / "shared").exists():
            (folder.parent / "shared").unlink(missing_ok=True)
            (folder.parent / "shared").symlink_to(shared.resolve())
        self.folder = folder

    def pytest(self, *options: str) -> subprocess.CompletedProcess[str]:
        """Run pytest here."""
        environment = os.environ | {"PYTHONPATH": str(self.folder / "src")}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
        return subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True,
            timeout=None if "--cov" in options else SECONDS, check=False,
        )  # fmt: skip

    def covering(self, jobs: int) -> dict[tuple[str, int], list[str]]:
        """Return the tests that execute each line of a module, the most specific first.

        Raises:
            RuntimeError: If the tests cannot be run.
        """
        coverage = ("--cov", "--cov-context=test", "--cov-report=", "-W", "ignore")
        result = self.pytest("-n", str(jobs), *coverage, *TESTS)
        if result.returncode not in (0, 1):
            raise RuntimeError(f"tests cannot run:\n{result.stdout[-3000:]}")
        failed = set(re.findall(r"^(?:FAILED|ERROR) (\S+)", result.stdout, re.MULTILINE))
        print(f"failing without a mutation, left out: {sorted(failed) or 'none'}", flush=True)
        data = CoverageData(str(self.folder / ".coverage"))
        data.read()
        tests: dict[tuple[str, int], set[str]] = {}
        executed: Counter[str] = Counter()
        for file in data.measured_files():
            module = os.path.relpath(os.path.realpath(file), self.folder.resolve())
            for line, contexts in data.contexts_by_lineno(file).items():
                names = {context.rpartition("|")[0] for context in contexts if "|" in context}
                names -= failed
                tests.setdefault((module, line), set()).update(names)
                executed.update(names)
        return {key: sorted(names, key=lambda n: (executed[n], n)) for key, names in tests.items()}

    def outcome(self, mutation: Mutation, tests: Sequence[str]) -> Outcome:
        """Apply ``mutation``, run ``tests`` and restore the module."""
        path = self.folder / mutation.module
        source = path.read_text()
        path.write_text(mutated(source, mutation.index))
        try:
            for part in (tests[:SPECIFIC], tests[SPECIFIC:]):
                if not part:
                    continue
                result = self.pytest("-x", "-n", "0", "--no-header", "-W", "ignore", *part)
                last = (result.stdout.strip().splitlines() or [result.stderr[-200:]])[-1]
                if result.returncode:
                    return Outcome(mutation, True, len(tests), last)
            return Outcome(mutation, False, len(tests), last if tests else "no test")
        except subprocess.TimeoutExpired:
            return Outcome(mutation, True, len(tests), f"no end within {SECONDS} s")
        finally:
            path.write_text(source)


def tests_of(covering: Mapping[tuple[str, int], list[str]], mutation: Mutation) -> list[str]:
    """Return the tests of ``mutation``'s line, or of its module if that is executed by its import.

    Coverage knows some statements of several lines by an earlier line only.
    """
    for line in range(mutation.line, mutation.line - 10, -1):
        if tests := covering.get((mutation.module, line)):
            return tests
    of_module = [tests for (module, _), tests in covering.items() if module == mutation.module]
    return list(dict.fromkeys(name for tests in of_module for name in tests))


def run(chosen: Sequence[Mutation], jobs: int) -> list[Outcome]:
    """Return the outcome of each mutation."""
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        copies: SimpleQueue[Copy] = SimpleQueue()
        for number in range(jobs):
            copies.put(Copy(Path(folder) / str(number) / "checkout"))
        first = copies.get()
        covering = first.covering(jobs)
        copies.put(first)

        def tested(mutation: Mutation) -> Outcome:
            copy = copies.get()
            try:
                outcome = copy.outcome(mutation, tests_of(covering, mutation))
            finally:
                copies.put(copy)
            state = "found" if outcome.found else "MISSED"
            print(f"{state:6} {mutation.module}:{mutation.line}: {mutation.change}", flush=True)
            return outcome

        with ThreadPoolExecutor(jobs) as pool:
            return list(pool.map(tested, chosen))


def main() -> None:
    """Run the sample and print its result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--number", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--report", type=Path)
    arguments = parser.parse_args()
    outcomes = run(sample(arguments.number, arguments.seed), arguments.jobs)
    if arguments.report:
        arguments.report.write_text(json.dumps([asdict(one) for one in outcomes], indent=1))
    for subject in MODULES:
        of_subject = [one for one in outcomes if one.mutation.subject == subject]
        print(f"{subject}: {sum(one.found for one in of_subject)} of {len(of_subject)}")
    found = sum(one.found for one in outcomes)
    print(f"{found} of {len(outcomes)} mutations found ({found / len(outcomes):.1%})")


if __name__ == "__main__":
    main()
