"""Malicious changes of a run, and all commands that read a run."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from benchmarks import synthetic_run
from tests.support.command import Done, aiperf

from aiperf_hpc.results.report.writer import write_report
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.paths import RunPaths

Json = dict[str, Any]


def finished_run(root: Path) -> RunPaths:
    """Write a small run that has ended, with its report."""
    paths = synthetic_run.write_run(root, 1, distinct=1).paths
    write_report(RunView(paths))
    return paths


Words = tuple[str | Path, ...]


def commands(run: Path) -> tuple[Words, ...]:
    """Return the commands that read a run, which lies in a folder of its own."""
    return (
        ("verify", run),
        ("status", run),
        ("status", run, "--json"),
        ("logs", run),
        ("list", run.parent),
        ("rank", run.parent),
        ("compare", run, run.parent / "last"),
        ("analyze", run),
        ("system", run),
        ("search", "replay", run),
        ("config", "show", run / "run.yaml"),
        ("report", run),
    )


def asked(run: Path, several: Sequence[Words]) -> dict[str, Done]:
    """Carry out commands on a run; return what came of each, by its name.

    Raises:
        AssertionError: one was refused in more than one line, or in none.
    """
    found = {}
    for words in several:
        name = " ".join(str(word) for word in words if word not in (run, run.parent))
        done = found[name] = aiperf(*words)
        assert done.returncode in (0, 1, 2), (name, done)
        if done.stderr:
            assert done.stderr.startswith("aiperf: "), (name, done.stderr[:500])
            assert done.stderr.endswith("\n"), (name, done.stderr[-500:])
            assert max(map(len, done.stderr.splitlines())) < 2_000, (name, done.stderr[:500])
        elif done.returncode:
            assert done.stdout, name
    return found


# Changes.

Change = Callable[[RunPaths], None]


def edited_lines(journal: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    journal.write_bytes(b"".join(change(journal.read_bytes().splitlines(keepends=True))))


def in_records(of_type: str, change: Callable[[Json], None], *, most: int = 1) -> Change:
    """Return what changes the first records of a type, in whichever journals they are."""

    def edit(paths: RunPaths) -> None:
        for journal in paths.journals():
            left = most

            def edited(lines: list[bytes]) -> list[bytes]:
                nonlocal left
                made = []
                for line in lines:
                    record = json.loads(line)
                    if left and record["event"]["type"] == of_type:
                        left -= 1
                        change(record)
                        line = json.dumps(record).encode() + b"\n"
                    made.append(line)
                return made

            edited_lines(journal, edited)

    return edit


def in_event(of_type: str, **values: Any) -> Change:  # noqa: ANN401 -- whatever a field takes
    return in_records(of_type, lambda record: record["event"].update(values))


def in_record(of_type: str, **values: Any) -> Change:  # noqa: ANN401
    return in_records(of_type, lambda record: record.update(values))


def in_run_yaml(change: Callable[[Json], None]) -> Change:
    def edit(paths: RunPaths) -> None:
        values = yaml.safe_load(paths.manifest.read_text())
        change(values)
        paths.manifest.write_text(yaml.safe_dump(values))

    return edit


def setting(section: str, **values: Any) -> Change:  # noqa: ANN401
    return in_run_yaml(lambda run: run["config"].setdefault(section, {}).update(values))


def in_manifest(**values: Any) -> Change:  # noqa: ANN401
    """Return what changes the second file that the report's manifest names."""

    def edit(paths: RunPaths) -> None:
        document = json.loads(paths.report_manifest.read_bytes())
        document["files"][1].update(values)
        paths.report_manifest.write_text(json.dumps(document))

    return edit


def instead(of: str, put: Callable[[Path], None]) -> Change:
    """Return what puts something else in the place of a file or folder of the run."""

    def edit(paths: RunPaths) -> None:
        path = paths.root / of
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        put(path)

    return edit


def fifo(path: Path) -> None:
    os.mkfifo(path)


def zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def text(content: str | bytes) -> Callable[[Path], None]:
    def put(path: Path) -> None:
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    return put


def sparse(path: Path) -> None:
    """A terabyte that takes no room."""
    path.touch()
    os.truncate(path, 10**12)


def appended(file: str, content: bytes) -> Change:
    def edit(paths: RunPaths) -> None:
        with (paths.root / file).open("ab") as journal:
            journal.write(content)

    return edit


def one_digit(of_type: str, place: int) -> Change:
    """Return what changes one digit of the UTC time of the last record of a type."""

    def change(record: Json) -> None:
        record["utc"] += float(10**place)

    return in_records(of_type, change)


JOURNAL = "replicas/r0/0.0/journal.jsonl"
FURTHER = "replicas/r0/0.0/further.jsonl"
HUGE = 10**310
BOMB = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
DEEPER = {"kind": "deeper", "after": "stem_relu", "kernel": 1}

FILES: Mapping[str, Change] = {
    **{f"a FIFO: {name}": instead(name, fifo)
       for name in ("run.yaml", "primary/journal.jsonl", JOURNAL, FURTHER, "report/report.json",
                    "report/manifest.json", "report/result.txt", "report/summary.json",
                    "report/manifest.json.sig", "primary/journal_digests.jsonl", "primary/other")},
    **{f"a link to zeros: {name}": instead(name, zeros)
       for name in ("run.yaml", "primary/journal.jsonl", JOURNAL, FURTHER, "report/report.json")},
    **{f"a terabyte: {name}": instead(name, sparse)
       for name in ("run.yaml", "primary/journal.jsonl", JOURNAL, "report/report.json",
                    "report/manifest.json", "report/result.txt")},
    "a folder that is a link": instead("replicas/r0", lambda path: path.symlink_to("/etc")),
    "a report that is a link": instead("report", lambda path: path.symlink_to("/etc")),
    "a replica's folder that is a file": instead("replicas/r0", text("x")),
    "a journal that is a folder": instead(JOURNAL, Path.mkdir),
    "report.json nested deep": instead("report/report.json", text("[" * 100_000)),
    "report.json of other JSON": instead("report/report.json", text('{"final":true,"trials":3}')),
    "run.yaml with aliases": instead("run.yaml", text(BOMB)),
    "run.yaml nested deep": instead("run.yaml", text("a: " + "[" * 3000)),
    "a line without an end": appended(JOURNAL, b"x" * 100_000),
    "a record without an end": appended(JOURNAL, b'{"v":2,"seq":99999,"utc":17'),
    "zeros behind the last record": appended("primary/journal.jsonl", b"\0" * 5000),
    "a line that is nested deep": appended(JOURNAL, b"[" * 100_000 + b"\n"),
    "a number of 5,000 digits": appended(JOURNAL, b'{"v":2,"seq":' + b"9" * 5000 + b"}\n"),
    "many lines that are no records": appended(JOURNAL, b"\n" * 20_000),
}  # fmt: skip

RECORDS: Mapping[str, Change] = {
    **{f"utc {utc}": in_record("run_ended", utc=utc)
       for utc in (1e300, float("inf"), float("nan"), 1e12, -1.0, "x")},
    **{f"{digit} places: {kind}": one_digit(kind, digit)
       for kind in ("run_ended", "run_started", "progress") for digit in (6, 8, 9)},
    "hours 1e308": in_event("run_started", hours=1e308),
    "nodes 10**310": in_event("run_started", nodes=HUGE),
    "train_samples 10**310": in_event("progress", train_samples=HUGE),
    "train_samples 2**127": in_event("progress", train_samples=2**127),
    "train_operations 2**127": in_event("trial_started", train_operations=2**127),
    "seed 10**310": in_event("trial_started", seed=HUGE),
    "time_spent 1e308 twice": in_records(
        "time_spent", lambda record: record["event"].update(seconds={"train": 1e308}), most=2),
    "time_spent 1e30 twice": in_records(
        "time_spent", lambda record: record["event"].update(seconds={"train": 1e30}), most=2),
    "prediction nan": in_event("proposed", prediction={"mean": float("nan"), "deviation": 1.0}),
    "prediction 1e300": in_event("proposed", prediction={"mean": 1e300, "deviation": 1e-300}),
    "losses 1e308": in_event("evaluated", train_loss=1e308, validation_loss=-1e308),
    "learning rate nan": in_event("evaluated", learning_rate="NaN"),
    "predicted nan": in_event("trial_ended", predicted_accuracy="NaN"),
    "predicted 1e308": in_event("trial_ended", predicted_accuracy=1e308),
    "a graph with NUL": in_event("trial_started", graph="a\0b"),
    "a graph that leads out": in_event("trial_started", graph="../../../etc/passwd"),
    "a graph of a long name": in_event("trial_started", graph="g" * 5000),
    "a trial that leads out": in_event("trial_started", trial="../../x"),
    "a trial of another name": in_event("trial_started", trial="\u202ex\ud800"),
    "a parent that is the trial": in_event(
        "trial_started", parent="r0-t000", morphisms=[DEEPER], proposal="x"),
    "100,000 morphisms": in_event("trial_started", morphisms=[DEEPER] * 100_000),
    "a morphism nested deep": in_event(
        "trial_started", morphisms=[{"kind": "deeper", "after": [[[[]]]]}]),
    "a morphism of a huge number": in_event(
        "trial_started", morphisms=[{"kind": "deeper", "after": "stem_relu", "kernel": HUGE}]),
    "a network of a huge number": in_event(
        "trial_started", parameters=2**127, depth=2**127, validation_operations=2**127),
    "samples of a huge shape": in_records(
        "dataset_loaded",
        lambda record: record["event"]["dataset"]["inputs"]["image"].update(shape=[10**9] * 3)),
    "samples of open axes": in_records(
        "dataset_loaded",
        lambda record: record["event"]["dataset"]["inputs"]["image"].update(shape=[None, 8, 1])),
    "samples of another name": in_records(
        "dataset_loaded",
        lambda record: record["event"]["dataset"].update(
            inputs={"x": record["event"]["dataset"]["inputs"]["image"]})),
    "samples of many axes": in_records(
        "dataset_loaded",
        lambda record: record["event"]["dataset"]["inputs"]["image"].update(shape=[2] * 10**5)),
    "classes 10**30": in_records(
        "dataset_loaded", lambda record: record["event"]["dataset"].update(classes=10**30)),
    "monotonic nan": in_record("heartbeat", mono=float("nan")),
    "memory 10**310": in_event("heartbeat", memory_bytes=HUGE),
    "a sequence number of 2**127": in_record("heartbeat", seq=2**127),
}  # fmt: skip

CONFIGURATIONS: Mapping[str, Change] = {
    "batch_size to 1e9": setting("hpo", space={"batch_size": {"low": 1, "high": 10**9}}),
    "batch_size to 1e6": setting("hpo", space={"batch_size": {"low": 1, "high": 10**6}}),
    "blocks of 1,000,000": setting("model", blocks=[1_000_000, 1, 1, 1]),
    "blocks of 256": setting("model", blocks=[256, 256, 256, 256]),
    "a width of 1e9": setting("model", base_width=10**9),
    "hours of 1e308": in_run_yaml(lambda run: run.update(hours=1e308)),
    "nodes of 10**310": in_run_yaml(lambda run: run.update(nodes=HUGE)),
    "nodes of a million": in_run_yaml(lambda run: run.update(nodes=10**6)),
    "train_samples of 10**30": setting("dataset", train_samples=10**30),
    "an interval of 1 s": setting("score", interval_hours=0.0005),
    "max_parameters of 10**310": setting("search", max_parameters=HUGE),
    "a preset that leads out": in_run_yaml(lambda run: run["config"].update(preset="../../../x")),
    "a preset with NUL": in_run_yaml(lambda run: run["config"].update(preset="a\0b")),
    "a workload of 1 MB": in_run_yaml(lambda run: run["config"].update(workload="x" * 900_000)),
    "a key of 1 MB": in_run_yaml(lambda run: run["config"].update({"x" * 900_000: 1})),
    "keys that are no text": in_run_yaml(lambda run: run["config"].update({1: 2, None: 3})),
    "a run_id of controls": in_run_yaml(lambda run: run.update(run_id="\x1b[2J\u202e")),
}

MANIFESTS: Mapping[str, Change] = {
    **{f"a manifest with {name[:20]!r}": in_manifest(path=name)
       for name in ("/etc/passwd", "../../x", "a\0b", "", ".", "x" * 5000, "report")},
    "a size of -1": in_manifest(bytes=-1),
    "a size of 10**18": in_manifest(bytes=10**18),
    "a size of 10**310": in_manifest(bytes=HUGE),
    "zeros by name, 10**18 of them": in_manifest(path="/dev/zero", bytes=10**18),
}  # fmt: skip

CHANGES = {**FILES, **RECORDS, **CONFIGURATIONS, **MANIFESTS}
