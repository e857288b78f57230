"""Signed runs: who signed, and what is wrong with a signature."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from benchmarks import synthetic_run
from benchmarks.byte_changes import changed_bytes, not_found
from tests.support.manifests import change_manifest
from tests.support.rules import check_rule, verify

from aiperf_hpc.cli import main
from aiperf_hpc.errors import RunDirectoryError, UsageError
from aiperf_hpc.integrity.signatures import load_private_key, make_key, public_path, read_trusted
from aiperf_hpc.results.report.provenance import NAMESPACE, sign_run
from aiperf_hpc.results.report.writer import write_report
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.rules.rule import RuleResult
from aiperf_hpc.run.paths import RunPaths


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("keys")
    made = folder / "one", folder / "other"
    for path in made:
        make_key(path, f"the centre's {path.name}")
    return made


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory, keys: tuple[Path, Path]) -> RunPaths:
    paths = synthetic_run.write_run(tmp_path_factory.mktemp("signed") / "run", 2, distinct=1).paths
    paths.replica_log("r0").write_text("what it printed\n")
    write_report(RunView(paths))
    sign_run(RunView(paths), load_private_key(keys[0]))
    return paths


@pytest.fixture
def run(signed: RunPaths, tmp_path: Path) -> RunPaths:
    """A copy that a test may change."""
    return RunPaths(shutil.copytree(signed.root, tmp_path / "run"))


def found(paths: RunPaths, *keys: Path, rule: str = "signature") -> RuleResult:
    trusted = read_trusted([public_path(key) for key in keys])
    return check_rule(rule, paths, trusted=trusted)


def test_who_signed_is_said(signed: RunPaths, keys: tuple[Path, Path]) -> None:
    (fingerprint,) = (each.fingerprint for each in read_trusted([public_path(keys[0])]))
    assert found(signed, keys[1], keys[0]).notes == (f"signed by the centre's one ({fingerprint})",)
    unchecked = found(signed)
    assert unchecked.caution == "UNTRUSTED KEY"
    assert unchecked.notes == (
        f"signed by {fingerprint}, key not checked; name trusted keys with --key",
    )
    assert all(each.passed for each in verify(RunView(signed)))


def test_an_unsigned_run_passes_unless_a_key_is_named(
    run: RunPaths, keys: tuple[Path, Path]
) -> None:
    run.signature.unlink()
    assert found(run).notes == ("unsigned",)
    (said,) = found(run, keys[0]).failures
    assert said.startswith("unsigned; it must be signed by the centre's one (SHA256:")
    sign_run(RunView(run), load_private_key(keys[0]))
    (said,) = found(run, keys[1]).failures
    assert said.startswith("signed by SHA256:")
    assert ", another key; it must be signed by the centre's other (SHA256:" in said


def test_a_manifest_made_again_has_no_signature_of_it(
    run: RunPaths, keys: tuple[Path, Path]
) -> None:
    change_manifest(run, lambda files: files[::-1])
    assert found(run).failures == ("BAD signature: it does not match this content",)
    run.signature.write_bytes(b"")
    assert found(run, keys[0]).failures == ("BAD signature: it is not an Ed25519 signature",)
    run.signature.unlink()
    run.signature.symlink_to("nowhere")
    (said,) = found(run).failures
    assert said.startswith("BAD signature: it cannot be checked: a link")


def test_what_is_late_is_not_signed(run: RunPaths) -> None:
    with run.replica_log("r0").open("a") as log:
        log.write("slurmstepd: late\n")
    assert found(run, rule="files").failures == (
        "replicas/r0/output.log has 17 bytes more than when the run ended",
    )
    (run.root / "more").mkdir()
    assert "more/ is an empty folder that the run did not create; remove it" in (
        found(run, rule="files").failures
    )
    run.signature.unlink()
    assert found(run, rule="files").failures == ()


def test_only_a_run_that_is_as_its_manifest_says_is_signed(
    run: RunPaths, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    key = load_private_key(keys[1])
    (run.root / "more").touch()
    with pytest.raises(UsageError, match=r"manifest.json does not name more: .*; `aiperf report "):
        sign_run(RunView(run), key)
    shutil.rmtree(run.report)
    with pytest.raises(UsageError, match="has no final report to sign"):
        sign_run(RunView(run), key)
    lasting = synthetic_run.write_run(tmp_path / "lasting", 1, ended=False).paths
    with pytest.raises(UsageError, match="has not ended; only ended runs are signed"):
        write_report(RunView(lasting), key=key)
    assert not lasting.signature.exists()


def test_a_signed_report_stays_unless_there_is_a_key(
    run: RunPaths, keys: tuple[Path, Path]
) -> None:
    before = run.signature.read_bytes()
    write_report(RunView(run))
    assert run.signature.read_bytes() == before
    (run.root / "more").touch()
    with pytest.raises(
        RunDirectoryError, match="is signed, and a new report would invalidate the signature"
    ):
        write_report(RunView(run))
    write_report(RunView(run), key=load_private_key(keys[1]))
    assert found(run, keys[1]).passed


def test_the_commands(run: RunPaths, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key, root = tmp_path / "key", str(run.root)
    assert main(["keygen", str(key), "--name", "A Centre"]) == 0
    assert main(["sign", root, "--key", str(key)]) == 0
    fingerprint = load_private_key(key).public.fingerprint
    assert f"signed by A Centre ({fingerprint}): {run.signature}\n" in capsys.readouterr().out
    assert main(["verify", root, "--key", str(public_path(key))]) == 0
    records, result = capsys.readouterr().out.splitlines()[-2:]
    assert records == f"records: consistent; signed by A Centre ({fingerprint})"
    assert result.startswith("result: unofficial: duration: ")
    assert main(["verify", root]) == 0
    assert "\nUNTRUSTED KEY  signature " in capsys.readouterr().out
    assert main(["verify", root, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["signature"].startswith(f"signed by {fingerprint},")
    assert main(["keygen", str(tmp_path / "other")]) == 0
    other = str(tmp_path / "other.pub")
    assert main(["verify", root, "--key", other]) == 1
    records, result = capsys.readouterr().out.splitlines()[-2:]
    assert records.startswith("records: inconsistent; failed: signature; signed by SHA")
    assert result == "result: unofficial: the records are inconsistent"
    assert main(["report", root, "--key", str(tmp_path / "none")]) == 2
    key.chmod(0o644)
    assert main(["sign", root, "--key", str(key)]) == 2
    assert "others may read the private key" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="OpenSSH is not here")
def test_openssh_signs_a_run(run: RunPaths, keys: tuple[Path, Path]) -> None:
    run.signature.unlink()
    words = ["ssh-keygen", "-Y", "sign", "-n", NAMESPACE, "-f"]
    subprocess.run([*words, keys[1], run.report_manifest], check=True, capture_output=True)
    assert found(run, keys[1]).passed


def test_any_byte_that_is_changed_is_found(run: RunPaths) -> None:
    """Fifty of them; `benchmarks/byte_changes.py` makes 2,000."""
    changes = changed_bytes(run.root, np.random.default_rng(14), 50)
    assert len({change.path for change in changes}) > 5
    assert not_found(run, changes) == []
