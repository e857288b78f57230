"""Forgeries of files: of the report, of the manifest, and by what was added to a run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.forgery.forger import Forge, ForgedRun, forgeries
from tests.support.manifests import Files, change_manifest, restate

from aiperf_hpc.run.paths import Incarnation, RunPaths, write_whole

PathOf = Callable[[RunPaths], Path]


def _report(change: Callable[[dict[str, Any]], object]) -> Forge:
    """Return a change of ``report.json``, with its SHA-256 in the manifest made again."""

    def forge(run: ForgedRun) -> None:
        report = json.loads(run.paths.report_json.read_text("utf-8"))
        change(report)
        content = f"{json.dumps(report, indent=1)}\n".encode()
        restate(run.paths, run.paths.report_json, content)

    return forge


def _text(of: PathOf, old: bytes, new: bytes) -> Forge:
    """Return a change of a text of the report, with its SHA-256 in the manifest made again."""
    return lambda run: restate(
        run.paths, of(run.paths), of(run.paths).read_bytes().replace(old, new)
    )


def _another_stop(run: ForgedRun) -> None:
    path = run.paths.result_log
    stop = rb'("time_ms": )\d([^\n]*"run_stop")'
    restate(run.paths, path, re.sub(stop, rb"\g<1>9\2", path.read_bytes()))


forgeries(
    "report",
    {
        "another end of the run in the log": ("result", _another_stop),
        "another score in the report": ("report", _report(lambda r: r["score"].update(ops=1e15))),
        "another verdict in the report":
            ("report", _report(lambda r: r.update(valid=True, invalid=[]))),
        "more operations of a trial in the report":
            ("report", _report(lambda r: r["trials"][0].update(operations=10**18))),
        "a trial less in the report": ("report", _report(lambda r: r["trials"].pop())),
        "more nodes in the report": ("report", _report(lambda r: r.update(nodes=300))),
        "a page that says valid":
            ("report", _text(lambda p: p.report_html, b"INVALID", b"VALID")),
        "a text that says valid":
            ("result", _text(lambda p: p.result_text, b"RESULT: INVALID", b"RESULT: VALID")),
        "another score in the log":
            ("result", _text(lambda p: p.result_log, b'"aiperf_ops", "value": ',
                             b'"aiperf_ops", "value": 9')),
        "another line in the list of runs":
            ("report", _text(lambda p: p.report_summary, b"simulated-3n", b"the-best-run")),
    },
    base="reported",
)  # fmt: skip


def _named(change: Callable[[Files], Files]) -> Forge:
    """Return a change of the files that the manifest names."""
    return lambda run: change_manifest(run.paths, change)


def _and(path: str) -> Callable[[Files], Files]:
    return lambda files: (*files, files[0].model_copy(update={"path": path}))


def _half(files: Files) -> Files:
    """What follows the first bytes would be anybody's."""
    return tuple(each.model_copy(update={"bytes": each.bytes // 2}) for each in files)


def _content(of: PathOf, change: Callable[[bytes], bytes]) -> Forge:
    """Return a change of a file."""
    return lambda run: write_whole(of(run.paths), change(of(run.paths).read_bytes()))


def _weights(paths: RunPaths) -> Path:
    return next(paths.replica("r0").glob("trained/*.safetensors"))


def _trainer(paths: RunPaths) -> Path:
    return paths.replica_journal("r0")


forgeries(
    "manifest",
    {
        "no manifest": ("files", lambda run: run.paths.report_manifest.unlink()),
        "a manifest without a file": ("files", _named(lambda files: files[1:])),
        "a manifest with a file that there was not":
            ("files", _named(_and("replicas/r9/0.0/journal.jsonl"))),
        "a manifest of another digest":
            ("files", _named(lambda files: (
                files[0].model_copy(update={"sha256": "0" * 64}), *files[1:]))),
        "a manifest of an earlier version":
            ("files", _content(lambda p: p.report_manifest, lambda c: c.replace(
                b'"schema_version": 2', b'"schema_version": 1'))),
        "a manifest of a shorter file": ("files", _named(_half)),
        "a manifest of a file outside": ("files", _named(_and("../other/run.yaml"))),
        # The same to a reader of JSON, with a word for the reader of text.
        "a manifest written otherwise":
            ("files", _content(lambda p: p.report_manifest, lambda c: c.replace(b"{", b"{ ", 1))),
        "a journal changed by one digit":
            ("files", _content(_trainer, lambda c: c.replace(
                b'"cpu_percent":0.0', b'"cpu_percent":1.0', 1))),
        "weights changed by one byte":
            ("files", _content(_weights, lambda c: c[:-1] + bytes([c[-1] ^ 1]))),
        "a digest for the search that was another":
            ("files", _content(lambda p: p.digest, lambda c: c.replace(b"r0-t1", b"r0-t2", 1))),
        "a graph left out":
            ("files", lambda run: next(run.paths.candidates.glob("*.json")).unlink()),
        "kept weights left out": ("files", lambda run: _weights(run.paths).unlink()),
    },
    base="reported",
)  # fmt: skip


def _a_life(run: ForgedRun) -> None:
    """Add a copy of another replica's journal, from before the end of the run."""
    content = run.paths.replica_journal("r1").read_bytes().replace(b'"r1', b'"r0')
    write_whole(run.paths.replica_journal("r0", Incarnation(0, 1)), content)


def _behind(of: PathOf, more: bytes) -> Forge:
    return _content(of, lambda content: content + more)


GARBAGE = _behind(_trainer, b"and a word more")
forgeries(
    "added files",
    {
        "a file added": ("files", lambda run: (run.paths.root / "README").write_text("Best.\n")),
        "a file added to the report":
            ("files", lambda run: (run.paths.report / "certificate.html").write_text("VALID")),
        "a graph added": ("files", lambda run: run.paths.graph("0" * 32).write_text("{}")),
        "a journal added":
            ("files", lambda run: run.paths.search_journal("r0", 7).write_bytes(b"")),
        "a link added": ("files", lambda run: (run.paths.root / "data").symlink_to("/")),
        "garbage behind a journal": ("files", GARBAGE),
        "garbage behind the end of a replica": ("writers", GARBAGE),
        "garbage behind the end of the run":
            ("writers", _behind(lambda p: p.primary_journal, b"\0" * 64)),
        "a line of garbage behind a journal":
            ("journals", _behind(_trainer, b"and a word more\n")),
        "a life added": ("files", _a_life),
        "bytes behind kept weights": ("files", _behind(_weights, b"\0")),
        "an unfinished record behind a journal":
            ("writers", _behind(_trainer, b'{"v":2,"seq":99999,"utc":17')),
    },
    base="reported",
)  # fmt: skip


def _edited(kind: str, old: bytes, new: bytes) -> Forge:
    """Return a change of the first record of a kind that has some text."""
    place = b'"event":{"type":"%s"' % kind.encode()

    def change(content: bytes) -> bytes:
        lines = content.splitlines(keepends=True)
        at = next(n for n, line in enumerate(lines) if place in line and old in line)
        lines[at] = lines[at].replace(old, new, 1)
        return b"".join(lines)

    return _content(_trainer, change)


BEGIN = b'{"v":2,"seq":'
forgeries(
    "edits",
    {
        "a record of another number": ("journals", _edited("progress", BEGIN, BEGIN + b"7")),
        "a record of another form": ("journals", _edited("progress", b'{"v":2', b'{"v":2,"x":2')),
        "an edited time split": ("time", _edited("time_spent", b'"start":', b'"start":99')),
        "an edited precision":
            ("rounds", _edited("trial_started", b'"precision":"bf16"', b'"precision":"fp8"')),
        "a damaged report": ("report", _content(lambda p: p.report_json, lambda _: b"{")),
        "a missing report": ("report", lambda run: run.paths.report_json.unlink()),
        "a damaged manifest": ("files", _content(lambda p: p.report_manifest, lambda _: b"{}")),
    },
    base="reported",
)  # fmt: skip
