"""Each forgery of a finished run, and what finds it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from tests.forgery import (  # noqa: F401 -- they enter their forgeries
    evaluations,
    files,
    graphs,
    omissions,
    physics,
    replicas,
    samples,
    stated,
    times,
    trials,
)
from tests.forgery.forger import FORGERIES, ForgedRun, Forgery, copy_of
from tests.forgery.witnessed import said_before, take_heads, witnessed
from tests.support.rules import check_rule, verify

from aiperf_hpc.integrity.signatures import PrivateKey, PublicKey, load_private_key, make_key
from aiperf_hpc.results.report.provenance import differences, put_signature, sign_run
from aiperf_hpc.results.report.writer import write_report
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.rules.registry import CONSISTENCY
from aiperf_hpc.run.paths import RunPaths

MADE_AGAIN = ("report", "result", "files", "energy")
"""The rules that compare what a cheat makes again with the same code."""
SIMULATED, REPORTED = "simulated", "reported"
OF_RECORDS = [each for each in FORGERIES if each.base != REPORTED]
OF_FILES = [each for each in FORGERIES if each.base == REPORTED]
SIGNED = {*OF_FILES, *{each.kind: each for each in OF_RECORDS if each.base == SIMULATED}.values()}
"""Forgeries of a signed run that every suite tries: all of files, and one of each kind of records.
``make trust`` tries the others."""


def found(
    paths: RunPaths,
    ignored: tuple[str, ...] = MADE_AGAIN,
    witnesses: tuple[PublicKey, ...] = (),
) -> dict[str, tuple[str, ...]]:
    """Return the rules that a run breaks, and how."""
    return {
        finding.rule: finding.failures
        for finding in verify(RunView(paths), witnesses=witnesses)
        if not finding.passed and finding.rule not in ignored
    }


@pytest.fixture(scope="session")
def key(tmp_path_factory: pytest.TempPathFactory) -> PrivateKey:
    path = tmp_path_factory.mktemp("keys") / "centre"
    make_key(path, "a centre")
    return load_private_key(path)


@pytest.fixture(scope="session")
def signed(
    bases: Callable[[str], Path], key: PrivateKey, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """Return a function that signs an honest run once, and returns where it is."""

    @cache
    def run_of(base: str) -> Path:
        run = copy_of(bases(base), tmp_path_factory.mktemp("signed") / "run")
        write_report(RunView(run.paths))
        sign_run(RunView(run.paths), key)
        return run.paths.root

    return run_of


@pytest.mark.parametrize("base", ["simulated", "resumed", "two-nodes", "several-ranks", "complete"])
def test_an_honest_run_is_not_taken_for_a_forged_one(
    copied: Callable[[str], ForgedRun], base: str
) -> None:
    run = copied(base)
    run.save()
    assert found(run.paths) == {}


@pytest.mark.parametrize("forgery", [f for f in OF_RECORDS if f.rule], ids=str)
def test_records_that_contradict_others_are_found_by_a_rule(
    copied: Callable[[str], ForgedRun], forgery: Forgery
) -> None:
    run = copied(forgery.base)
    forgery.forge(run)
    run.save()
    assert not check_rule(str(forgery.rule), run.paths).passed


@pytest.mark.parametrize("forgery", OF_FILES, ids=str)
def test_files_that_were_changed_or_added_are_found_by_a_rule(
    copied: Callable[[str], ForgedRun], forgery: Forgery
) -> None:
    run = copied(forgery.base)
    forgery.forge(run)
    assert not check_rule(str(forgery.rule), run.paths).passed


# What no rule finds of an unwitnessed run: heads and all that is unsigned are made again.


@pytest.fixture(scope="session")
def seen(
    bases: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, PublicKey]:
    """An honest run that a witness saw, and the witness's key."""
    folder = tmp_path_factory.mktemp("witnessed")
    run = copy_of(bases("simulated"), folder / "run")
    witness = witnessed(run, folder / "witness", run.settings["run_id"])
    witness.log.close()
    return run.paths.root, witness.key


def test_an_honest_run_that_was_witnessed_is_verified(seen: tuple[Path, PublicKey]) -> None:
    root, key = seen
    assert found(RunPaths(root), witnesses=(key,)) == {}


@pytest.mark.parametrize("forgery", [f for f in OF_RECORDS if f.rule is None], ids=str)
def test_what_no_rule_finds_is_not_what_the_witness_saw(
    seen: tuple[Path, PublicKey], tmp_path: Path, forgery: Forgery
) -> None:
    root, key = seen
    run = copy_of(root, tmp_path / "run")
    answers = said_before(run)
    forgery.forge(run)
    run.save()
    take_heads(ForgedRun(run.paths), answers)
    assert {*found(run.paths, witnesses=(key,))} == {"witness"}


@pytest.mark.parametrize(
    "forgery",
    [
        pytest.param(each, id=str(each), marks=() if each in SIGNED else pytest.mark.trust)
        for each in FORGERIES
    ],
)
def test_a_signed_run_finds_all_that_is_made_afterwards(
    signed: Callable[[str], Path], tmp_path: Path, forgery: Forgery
) -> None:
    """The signature is of the manifest, and that of every file: one of the two is another."""
    run = copy_of(signed(SIMULATED if forgery.base == REPORTED else forgery.base), tmp_path / "run")
    before = run.paths.report_manifest.read_bytes()
    forgery.forge(run)
    if forgery.base != REPORTED:
        run.save()
    view = RunView.read(run.paths)
    manifest = run.paths.report_manifest
    kept = manifest.exists() and manifest.read_bytes() == before
    assert not kept or differences(view)


def _trusted(paths: RunPaths, key: PrivateKey) -> dict[str, tuple[str, ...]]:
    return {f.rule: f.failures for f in verify(RunView(paths), (key.public,)) if not f.passed}


def test_a_run_that_was_signed_is_verified(signed: Callable[[str], Path], key: PrivateKey) -> None:
    assert _trusted(RunPaths(signed(SIMULATED)), key) == {}


def test_a_signature_is_not_that_of_a_report_made_again(
    signed: Callable[[str], Path], key: PrivateKey, tmp_path: Path
) -> None:
    """The cheat makes all files again: its signature is another's, or of another."""
    run = copy_of(signed(SIMULATED), tmp_path / "run")
    signature = run.paths.signature.read_bytes()
    evaluations.lower_loss(run)
    run.reseal()
    assert found(run.paths, ignored=()) == {}
    assert list(_trusted(run.paths, key)) == ["signature"]
    run.paths.signature.write_bytes(signature)
    assert "BAD signature" in _trusted(run.paths, key)["signature"][0]
    run.paths.signature.unlink()
    make_key(tmp_path / "own", "the cheat")
    manifest = run.paths.report_manifest.read_bytes()
    put_signature(run.paths, manifest, load_private_key(tmp_path / "own"))
    assert "another key" in _trusted(run.paths, key)["signature"][0]


def test_forgeries_are_of_all_kinds() -> None:
    kinds = Counter(forgery.kind for forgery in FORGERIES)
    assert set(kinds) == {
        "samples", "time", "replicas", "trials", "graphs", "evaluations", "dataset", "hardware",
        "software", "report", "manifest", "added files", "edits", "omissions",
    }  # fmt: skip
    found = sum(forgery.rule is not None for forgery in FORGERIES)
    assert len(FORGERIES) >= 200
    page = " ".join((Path(__file__).parents[2] / "docs" / "trust.md").read_text("utf-8").split())
    assert f"applies {len(FORGERIES)} forgeries" in page
    assert f"rules detect {found}. The other {len(FORGERIES) - found} change" in page
    assert f"the signature detects all {len(FORGERIES)} (`make trust`)" in page
    assert len({str(forgery) for forgery in FORGERIES}) == len(FORGERIES)
    assert {forgery.rule for forgery in FORGERIES} - {None} <= {rule.name for rule in CONSISTENCY}
