"""Forgeries by what was added to a run."""

from __future__ import annotations

from tests.forgery.forger import ForgedRun, forgery

from aiperf_hpc.run.paths import Incarnation, write_whole


@forgery("added files", "files", base="reported")
def a_file_added(run: ForgedRun) -> None:
    (run.paths.root / "README").write_text("The best run.\n")


@forgery("added files", "files", base="reported")
def a_file_added_to_the_report(run: ForgedRun) -> None:
    (run.paths.report / "certificate.html").write_text("VALID")


@forgery("added files", "files", base="reported")
def a_graph_added(run: ForgedRun) -> None:
    run.paths.graph("0" * 32).write_text("{}")


@forgery("added files", "files", base="reported")
def a_journal_added(run: ForgedRun) -> None:
    run.paths.search_journal("r0", 7).write_bytes(b"")


@forgery("added files", "files", base="reported")
def a_link_added(run: ForgedRun) -> None:
    (run.paths.root / "data").symlink_to("/")


@forgery("added files", "files", base="reported")
def garbage_behind_a_journal(run: ForgedRun) -> None:
    path = run.paths.replica_journal("r0")
    write_whole(path, path.read_bytes() + b"and a word more")


@forgery("added files", "writers", base="reported")
def garbage_behind_the_end_of_a_replica(run: ForgedRun) -> None:
    garbage_behind_a_journal(run)


@forgery("added files", "writers", base="reported")
def garbage_behind_the_end_of_the_run(run: ForgedRun) -> None:
    path = run.paths.primary_journal
    write_whole(path, path.read_bytes() + b"\0" * 64)


@forgery("added files", "journals", base="reported")
def a_line_of_garbage_behind_a_journal(run: ForgedRun) -> None:
    path = run.paths.replica_journal("r0")
    write_whole(path, path.read_bytes() + b"and a word more\n")


@forgery("added files", "files", base="reported")
def a_life_added(run: ForgedRun) -> None:
    """A copy of another replica's, before the end of the run."""
    content = run.paths.replica_journal("r1").read_bytes().replace(b'"r1', b'"r0')
    write_whole(run.paths.replica_journal("r0", Incarnation(0, 1)), content)


@forgery("added files", "files", base="reported")
def bytes_behind_kept_weights(run: ForgedRun) -> None:
    path = next(run.paths.replica("r0").glob("trained/*.safetensors"))
    write_whole(path, path.read_bytes() + b"\0")
