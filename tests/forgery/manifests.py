"""Forgeries of the manifest, and of files that it names."""

from __future__ import annotations

from tests.forgery.forger import ForgedRun, forgery
from tests.support.manifests import change_manifest

from aiperf_hpc.run.paths import write_whole


@forgery("manifest", "files", base="reported")
def no_manifest(run: ForgedRun) -> None:
    run.paths.report_manifest.unlink()


@forgery("manifest", "files", base="reported")
def a_manifest_without_a_file(run: ForgedRun) -> None:
    change_manifest(run.paths, lambda files: files[1:])


@forgery("manifest", "files", base="reported")
def a_manifest_with_a_file_that_there_was_not(run: ForgedRun) -> None:
    more = {"path": "replicas/r9/0.0/journal.jsonl"}
    change_manifest(run.paths, lambda files: (*files, files[0].model_copy(update=more)))


@forgery("manifest", "files", base="reported")
def a_manifest_of_another_digest(run: ForgedRun) -> None:
    other = {"sha256": "0" * 64}
    change_manifest(run.paths, lambda files: (files[0].model_copy(update=other), *files[1:]))


@forgery("manifest", "files", base="reported")
def a_manifest_of_a_shorter_file(run: ForgedRun) -> None:
    """What follows the first bytes would be anybody's."""
    change_manifest(
        run.paths,
        lambda files: tuple(f.model_copy(update={"bytes": f.bytes // 2}) for f in files),
    )


@forgery("manifest", "files", base="reported")
def a_manifest_of_a_file_outside(run: ForgedRun) -> None:
    more = {"path": "../other/run.yaml"}
    change_manifest(run.paths, lambda files: (*files, files[0].model_copy(update=more)))


@forgery("manifest", "files", base="reported")
def a_manifest_written_otherwise(run: ForgedRun) -> None:
    """The same to a reader of JSON, with a word for the reader of text."""
    content = run.paths.report_manifest.read_bytes()
    write_whole(run.paths.report_manifest, content.replace(b"{", b"{ ", 1))


@forgery("manifest", "files", base="reported")
def a_journal_changed_by_one_digit(run: ForgedRun) -> None:
    path = run.paths.replica_journal("r0")
    content = path.read_bytes()
    write_whole(path, content.replace(b'"cpu_percent":0.0', b'"cpu_percent":1.0', 1))


@forgery("manifest", "files", base="reported")
def weights_changed_by_one_byte(run: ForgedRun) -> None:
    path = next(run.paths.replica("r0").glob("trained/*.safetensors"))
    content = path.read_bytes()
    write_whole(path, content[:-1] + bytes([content[-1] ^ 1]))


@forgery("manifest", "files", base="reported")
def a_digest_for_the_search_that_was_another(run: ForgedRun) -> None:
    content = run.paths.digest.read_bytes()
    write_whole(run.paths.digest, content.replace(b"r0-t1", b"r0-t2", 1))


@forgery("manifest", "files", base="reported")
def a_graph_left_out(run: ForgedRun) -> None:
    next(run.paths.candidates.glob("*.json")).unlink()


@forgery("manifest", "files", base="reported")
def kept_weights_left_out(run: ForgedRun) -> None:
    next(run.paths.replica("r0").glob("trained/*.safetensors")).unlink()
