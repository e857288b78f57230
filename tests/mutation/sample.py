"""Sampled mutation testing of the code that decides a score.

    python -m tests.mutation.sample --trace [FOLDER ...]
    python -m tests.mutation.sample [--number 200] [--seed 1] [--survivors]

The first command records which functions each test calls. The second one changes one operator,
condition, number or returned value at a time in a copy of the working tree, and runs the tests that
call the changed function until one of them fails, for half a minute of processor time at most. It
prints each mutant, and the fraction that the tests killed of those that can be (`equivalent.py`). A
mutant whose tests hang is killed. ``--survivors`` repeats those that survived before.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path

from tests.mutation.calls import Trace
from tests.mutation.checkout import ROOT, Checkout
from tests.mutation.equivalent import EQUIVALENT
from tests.mutation.mutants import Mutant, mutants

TRACE = ROOT / "build" / "mutation" / "trace.json"
SUBJECTS = {
    "counting": ("ops_counter/[!s]*.py",),
    "score": ("ops_counter/score.py", "rules/judgement.py", "rules/consistency/score.py"),
    "journals": (
        "src/aiperf_hpc/run/*journal*.py",
        "src/aiperf_hpc/run/records/*.py",
        "src/aiperf_hpc/run/search_digest.py",
    ),
    "history": ("src/aiperf_hpc/run/history/*.py", "src/aiperf_hpc/run/executed_samples.py"),
    "rules on validity": ("rules/validity/*.py",),
    "rules on consistency": ("rules/consistency/[!s]*.py", "rules/consistency/s[!c]*.py"),
    "credit": ("replica/training/credit.py", "replica/training/schedule.py"),
    "verification": ("verification/**/*.py",),
    "morphisms": ("morphism/operators/*.py",),
}
"""Modules of each subject, which is an equal part of a sample."""
TESTS = (
    "tests/ops_counter", "tests/rules", "tests/verification", "tests/run", "tests/morphism",
    "tests/replica/training", "tests/replica/trials", "tests/replica/test_small_parts.py",
    "tests/forgery", "tests/core", "tests/workloads", "tests/simulation/test_elastic.py",
    "tests/results", "tests/analysis",
)  # fmt: skip
BUDGET = 30.0
"""Seconds of processor time of a mutant's tests."""


def trace(checkout: Checkout, folders: Sequence[str]) -> None:
    """Trace the tests of ``folders``, and add them to the trace of others."""
    known = json.loads(TRACE.read_text("utf-8")) if TRACE.exists() else {}
    outcome = checkout.pytest(folders, 4 * 3600)
    if not outcome.trace:
        raise SystemExit(f"no test could be traced:\n{checkout.log.read_text('utf-8')[-2000:]}")
    others = {test: one for test, one in known.items() if not test.startswith(tuple(folders))}
    TRACE.parent.mkdir(parents=True, exist_ok=True)
    TRACE.write_text(json.dumps(others | outcome.trace), "utf-8")
    print(f"{len(outcome.trace)} tests traced; left out, as they fail: {outcome.failed or 'none'}")


def sample(number: int, seed: int) -> Iterator[tuple[str, Mutant]]:
    """Yield mutants with their subjects, equally many of each.

    A hash orders them: a change of the code leaves most of the sample as it was.
    """
    for index, (subject, patterns) in enumerate(SUBJECTS.items()):
        paths = sorted({path for pattern in patterns for path in ROOT.glob(pattern)})
        possible = [
            mutant
            for path in paths
            for mutant in mutants(str(path.relative_to(ROOT)), path.read_text("utf-8"))
        ]
        possible.sort(key=lambda mutant: sha256(f"{seed} {mutant.key}".encode()).digest())
        part = number * (index + 1) // len(SUBJECTS) - number * index // len(SUBJECTS)
        yield from ((subject, mutant) for mutant in possible[:part])


def tests_of(mutant: Mutant, trace: Trace) -> list[str]:
    """Return the tests of a mutant: those that call its function, then others of their files.

    What runs at import is tested by all that call its class or module, else by the nearest tests.
    """
    near = set(Path(mutant.module).with_suffix("").parts)

    def order(test: str) -> tuple[int, float]:
        parts = test.partition(".py::")[0].replace("/test_", "/").split("/")
        return -len(near.intersection(parts)), trace[test]["seconds"]

    name = f"{mutant.module}:{mutant.function}"
    for begin in (f"{name}.", f"{mutant.module}:", ""):
        calling = {
            test for test, one in trace.items()
            if any(call == name or call.startswith(begin) for call in one["calls"])
        }  # fmt: skip
        if calling:
            break
    files = {test.partition("::")[0] for test in calling}
    others = {test for test in trace if test.partition("::")[0] in files} - calling
    chosen, left = [], BUDGET
    for test in [*sorted(calling, key=order), *sorted(others, key=order)]:
        if (seconds := trace[test]["seconds"]) <= left:
            chosen.append(test)
            left -= seconds
    return chosen


def main() -> None:
    """Trace tests, or run a sample and print its result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trace", nargs="*", metavar="FOLDER")
    parser.add_argument("--number", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--survivors", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        checkout = Checkout(Path(folder))
        if options.trace is not None:
            trace(checkout, options.trace or TESTS)
        elif not TRACE.exists():
            parser.error("run it with --trace first")
        else:
            results = TRACE.with_name(f"seed{options.seed}.json")
            chosen = list(sample(options.number, options.seed))
            report(checkout, chosen, results, options.survivors)


def report(
    checkout: Checkout, chosen: Sequence[tuple[str, Mutant]], results: Path, survivors: bool
) -> None:
    """Test mutants and print the fraction that tests killed; ``results`` has their last tests."""
    traced: Trace = json.loads(TRACE.read_text("utf-8"))
    killers: dict[str, str] = json.loads(results.read_text("utf-8")) if survivors else {}
    possible: Counter[str] = Counter()
    killed: Counter[str] = Counter()
    for subject, mutant in chosen:
        if mutant.key in EQUIVALENT:
            continue
        if killers.get(mutant.key) not in traced:  # A survivor, or its test is gone.
            tests = tests_of(mutant, traced)
            seconds = [traced[test]["seconds"] for test in tests]
            killer = killers[mutant.key] = checkout.killed(mutant, tests, seconds)
            results.write_text(json.dumps(killers, indent=1), "utf-8")
            outcome = f"killed by {killer}" if killer else f"SURVIVED {len(tests)} tests"
            print(f"{mutant.key}\n    {outcome}", flush=True)
        possible[subject] += 1
        killed[subject] += bool(killers[mutant.key])
    for subject, number in possible.items():
        print(f"{subject}: {killed[subject]} of {number}")
    total = possible.total()
    print(f"{killed.total()} of {total} mutants killed ({killed.total() / total:.1%}); ", end="")
    print(f"{len(chosen) - total} more are equivalent")


if __name__ == "__main__":
    main()
