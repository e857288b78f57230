"""The two answers of ``aiperf verify``: consistent records, and an official result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks import synthetic_run
from tests.support.run_manifest import run_manifest

from aiperf_hpc.cli import main
from aiperf_hpc.config import load_config
from aiperf_hpc.integrity.signatures import PublicKey, load_private_key, make_key
from aiperf_hpc.results.report.writer import write_report
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.rules.consistency.evidence import Trusted
from aiperf_hpc.rules.judgement import Judgement, assured
from aiperf_hpc.rules.registry import CONSISTENCY
from aiperf_hpc.rules.rule import Division, RuleResult, Violation
from aiperf_hpc.rules.validity.result import Assurance
from aiperf_hpc.verification.execution.checks import Verdict
from aiperf_hpc.verification.execution.comparison import ReexecutedTrial
from aiperf_hpc.verification.execution.outcome import BEST, OF_SIGNATURE, Outcome
from aiperf_hpc.verification.verdict import RunVerdict, assurance_of, suffices

BROKEN = tuple(
    Violation(rule=rule, reason=reason)
    for rule, reason in (("hours", "too few"), ("hours", "again"), ("error", "high"))
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    paths = synthetic_run.write_run(tmp_path / "run", 2, distinct=1).paths
    write_report(RunView(paths))
    return paths.root


def test_an_invalid_run_is_consistent_and_unofficial(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(root)]) == 0
    *rules, evidence, records, result = capsys.readouterr().out.splitlines()
    assert evidence == (
        "evidence: self-reported: no trusted signature, no trusted witness, "
        "no sufficient re-execution"
    )
    assert records == "records: consistent; unsigned"
    assert result.startswith("result: unofficial: duration: ")
    assert not [each for each in rules if "(0 checked)" in each]
    assert [each.rpartition(": ")[2] for each in rules if "signature" in each] == ["unsigned"]
    assert main(["verify", str(root), "--official"]) == 3
    capsys.readouterr()
    assert main(["verify", str(root), "--official", "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert (found["consistent"], found["official"], found["division"]) == (True, False, None)
    assert found["evidence"] == {"signed": False, "witnessed": False, "executed": False}
    assert found["unofficial_reasons"][0].startswith("duration: ")
    (signature,) = (each for each in found["rules"] if each["rule"] == "signature")
    assert (signature["passed"], signature["skipped"]) == (None, "unsigned")


def test_inconsistent_records_are_no_official_result(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (root / "report" / "result.txt").open("a") as text:
        text.write("more\n")
    assert main(["verify", str(root), "--official"]) == 1
    records, result = capsys.readouterr().out.splitlines()[-2:]
    assert records.startswith("records: inconsistent; failed: report, files; unsigned")
    assert result == "result: unofficial: the records are inconsistent"


FORGED = "PASSED  signature    signed by alice (1 checked)"


@pytest.mark.parametrize("separator", ["\n", "\u2028", "\x1b[2K"])
def test_no_name_of_a_file_prints_a_line_of_its_own(
    root: Path, capsys: pytest.CaptureFixture[str], separator: str
) -> None:
    (root / f"a{separator}{FORGED}").touch()
    assert main(["verify", str(root)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert not any(line.startswith(FORGED) for line in lines)
    assert all(line.isprintable() for line in lines)
    (root / "run.yaml").rename(root / f"run{separator}{FORGED}")
    copy = root.rename(root.with_name(f"run{separator}{FORGED}"))
    assert main(["verify", str(copy)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert FORGED in line


def test_a_run_that_has_not_ended_is_not_official_yet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = synthetic_run.write_run(tmp_path / "run", 1, ended=False).paths
    assert main(["verify", str(run.root)]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "records: consistent; unsigned",
        "result: unofficial: the run has not ended",
    ]


@pytest.mark.parametrize(
    ("executed", "division", "violations", "records", "result"),
    [
        ("", Division.CLOSED, (), "consistent; unsigned", "official, closed division"),
        ("", None, BROKEN, "consistent; unsigned",
         "unofficial: hours: too few; also violated: error"),
        ("FAILED: r0-t1", None, (), "inconsistent; FAILED: r0-t1; unsigned",
         "unofficial: the records are inconsistent"),
    ],
)  # fmt: skip
def test_the_two_lines(
    executed: str,
    division: Division | None,
    violations: tuple[Violation, ...],
    records: str,
    result: str,
) -> None:
    broken = tuple(RuleResult(e.rule, "", failures=(e.reason,)) for e in violations)
    judgement = None if executed else Judgement(division, broken)
    verdict = RunVerdict((), executed, "unsigned", Assurance(True, True), True, judgement)
    assert (verdict.records, verdict.result) == (records, result)
    assert verdict.official is (division is not None)


@pytest.mark.parametrize(
    ("found", "requested", "division"),
    [
        (Assurance(True, True), None, Division.CLOSED),
        (Assurance(False, False, True), "closed", Division.CLOSED),
        (Assurance(True, False), None, Division.OPEN),
        (Assurance(False, True), "closed", None),
        (Assurance(False, False), "closed", None),
    ],
)  # fmt: skip
def test_a_closed_result_is_signed_and_witnessed_or_executed_again(
    found: Assurance, requested: str | None, division: Division | None
) -> None:
    run = run_manifest(load_config("simulated"), division=requested)
    judged = assured(Judgement(Division.CLOSED, ()), run, found)
    assert judged.division is division
    verdict = RunVerdict((), "", "unsigned", found, True, judged)
    assert ("evidence: self-reported: " in verdict.result) == (division is not Division.CLOSED)
    other = Judgement(Division.OPEN, ())
    assert assured(other, run, Assurance(False, False)) is other


@pytest.mark.parametrize(
    ("population", "sampled", "enough"),
    [(100, 1, False), (100, 9, False), (100, 10, True), (3, 2, False), (3, 3, True), (0, 0, False)],
)
def test_a_few_reexecuted_trials_do_not_replace_a_witness(
    population: int, sampled: int, *, enough: bool
) -> None:
    assert suffices(executed(population, sampled)) is enough


def test_a_sample_by_the_signature_replaces_no_witness_unless_it_includes_all_trials() -> None:
    assert not suffices(executed(100, 10, OF_SIGNATURE))
    assert not suffices(executed(11, 10, OF_SIGNATURE))
    assert suffices(executed(10, 10, OF_SIGNATURE))


def executed(population: int, sampled: int, seed_origin: str = "as given") -> Outcome:
    trials = [("r0-t0", BEST), *((f"r0-t{n}", f"drawn {n}") for n in range(1, sampled + 1))]
    reexecuted = tuple(
        ReexecutedTrial(
            trial=name, selected_by=why, epoch=1, verdict=Verdict.PASSED, failure="", checks=()
        )
        for name, why in trials
    )
    return Outcome(
        passed=True, seed="s", seed_origin=seed_origin, population=population, stored=population,
        engine="torch", device="cpu", trials=reexecuted,
    )  # fmt: skip


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> PublicKey:
    path = tmp_path_factory.mktemp("keys") / "key"
    make_key(path, "Example Centre")
    return load_private_key(path).public


def test_only_what_the_verifier_trusts_counts(key: PublicKey) -> None:
    passed = [RuleResult(rule.name, "") for rule in CONSISTENCY]
    assert assurance_of(Trusted(), passed) == Assurance(False, False)
    assert assurance_of(Trusted(signers=(key,)), passed) == Assurance(True, False)
    both = Trusted(signers=(key,), witnesses=(key,))
    assert assurance_of(both, passed) == Assurance(True, True)
    for rule, found in (("digests", Assurance(True, False)), ("signature", Assurance(False, True))):
        broken = [e for e in passed if e.rule != rule] + [RuleResult(rule, "", failures=("no",))]
        assert assurance_of(both, broken) == found
