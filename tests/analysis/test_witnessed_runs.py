"""Signed and witnessed runs: which of them the commands report as closed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.forgery.conftest import simulated
from tests.forgery.forger import ForgedRun
from tests.forgery.witnessed import witnessed
from tests.support.rules import satisfying_all_rules
from tests.support.tsa import make_authority

from aiperf_hpc.analysis.ranking import rank_runs, tables_of
from aiperf_hpc.cli import main
from aiperf_hpc.integrity.signatures import load_private_key, make_key, public_path, read_trusted
from aiperf_hpc.results.report.writer import write_report
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.rules.consistency.evidence import Trusted
from aiperf_hpc.rules.rule import Division

UNCONFIRMED = "no trusted witness has confirmed this run"


class WitnessedRun(NamedTuple):
    """A signed and witnessed run, and files of public keys."""

    folder: Path
    """Folder that has this run alone."""
    signer: Path
    witness: Path
    stranger: Path
    """A key that neither signed nor witnessed the run."""

    def trusted(self, *, witness: bool) -> Trusted:
        return Trusted(read_trusted([self.signer]), read_trusted([self.witness] * witness))


@pytest.fixture(autouse=True)
def _satisfied() -> Iterator[None]:
    with satisfying_all_rules():
        yield


@pytest.fixture(scope="module")
def witnessed_run(tmp_path_factory: pytest.TempPathFactory) -> WitnessedRun:
    folder, keys = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("keys")
    for name in ("signer", "stranger"):
        make_key(keys / name, name)
    run = ForgedRun(simulated(folder / "run"))
    witness = witnessed(run, keys / "log", run.settings["run_id"])
    witness.log.close()
    (keys / "witness.pub").write_text(witness.key.line, "ascii")
    with satisfying_all_rules():
        write_report(RunView(run.paths), key=load_private_key(keys / "signer"))
    signer, witness_key, stranger = (
        public_path(keys / name) for name in ("signer", "witness", "stranger")
    )
    return WitnessedRun(folder, signer, witness_key, stranger)


def test_a_run_is_closed_with_a_trusted_signature_and_witness(witnessed_run: WitnessedRun) -> None:
    ranking = rank_runs(witnessed_run.folder, trusted=witnessed_run.trusted(witness=True))
    (entry,) = ranking.divisions[Division.CLOSED]
    assert (entry.violations, list(ranking.divisions)) == ((), [Division.CLOSED])
    assert entry.signed_by.startswith("signer (SHA256:")
    assert not entry.signed_by.endswith("not checked")
    table = tables_of(ranking)[0]
    assert (table.title, len(table.rows)) == ("Official runs, closed division", 1)
    assert not [note for note in table.notes if "not closed" in note]


def test_the_same_run_is_open_without_a_trusted_witness(witnessed_run: WitnessedRun) -> None:
    (entry,) = rank_runs(witnessed_run.folder, trusted=witnessed_run.trusted(witness=False)).valid
    assert entry.division is Division.OPEN
    assert entry.violations == ()
    assert "no trusted witness" in " ".join(map(str, entry.closed_violations))


def test_rank_accepts_witnesses(
    witnessed_run: WitnessedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, signer = str(witnessed_run.folder), str(witnessed_run.signer)
    command = ["rank", folder, "--json", "--key", signer, "--witness"]
    assert main([*command, str(witnessed_run.witness)]) == 0
    (entry,) = json.loads(capsys.readouterr().out)["valid"]
    assert (entry["name"], entry["division"]) == ("run", "closed")
    assert main([*command, str(witnessed_run.stranger)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["valid"] == []
    assert f"not verified, witness: {UNCONFIRMED}" in found["excluded"][0]["reasons"]


def test_verify_accepts_witnesses(
    witnessed_run: WitnessedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    run, signer = str(witnessed_run.folder / "run"), str(witnessed_run.signer)
    command = ["verify", run, "--official", "--key", signer]
    assert main([*command, "--witness", str(witnessed_run.witness)]) == 0
    *_, evidence, _, result = capsys.readouterr().out.splitlines()
    assert "trusted witness" in evidence
    assert "no trusted" not in evidence
    assert result == "result: official, closed division"
    assert main([*command, "--witness", str(witnessed_run.stranger)]) == 1
    assert UNCONFIRMED in capsys.readouterr().out


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
@pytest.mark.parametrize(("command", "folder", "status"), [("verify", "run", 1), ("rank", ".", 0)])
def test_a_timestamp_authority_that_saw_nothing_confirms_nothing(
    witnessed_run: WitnessedRun,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    folder: str,
    status: int,
) -> None:
    root = make_authority(tmp_path / "authority")
    path = str(witnessed_run.folder / folder)
    assert main([command, path, "--json", "--tsa", str(root)]) == status
    assert UNCONFIRMED in capsys.readouterr().out
