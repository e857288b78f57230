"""What a cheat does to a finished run: change records, and make everything unsigned again.

A forgery is a function that changes the records of a ``ForgedRun``. ``save`` then numbers the
records anew, states the SHA-256 of ``run.yaml`` as it is by then, and writes the journals;
``reseal`` writes report, texts and manifest anew too, by the program's own code.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from aiperf_hpc.config import validate
from aiperf_hpc.errors import MorphismError
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.operators.morphisms import from_data, grow
from aiperf_hpc.ops_counter.count import count
from aiperf_hpc.results.report.writer import write_report
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.graph_store import GraphStore
from aiperf_hpc.run.paths import Incarnation, RunPaths, write_whole
from aiperf_hpc.trial import DatasetInfo
from aiperf_hpc.workloads.registry import initial_graph

Line = dict[str, Any]
"""A record as JSON has it."""


Forge = Callable[["ForgedRun"], object]
"""A function that changes a run."""


class Forgery(NamedTuple):
    """One way to forge a run."""

    kind: str
    name: str
    forge: Forge
    rule: str | None
    """The rule that finds it; None where all that is unsigned says the same."""
    base: str
    """The run that it is tried on, by its name."""

    def __str__(self) -> str:
        return f"{self.kind}: {self.name}"


COMPLETE = "complete"
"""The base with all that this version records: a real run, with digests of its journals."""
FORGERIES: list[Forgery] = []
"""All forgeries, in the order of their definition."""


def forgery(
    kind: str, rule: str | None = None, base: str = "simulated"
) -> Callable[[Callable[[ForgedRun], None]], Callable[[ForgedRun], None]]:
    """Enter a forgery into the list."""

    def enter(forge: Callable[[ForgedRun], None]) -> Callable[[ForgedRun], None]:
        name = forge.__name__.replace("_", " ")
        FORGERIES.append(Forgery(kind, name, forge, rule, base))
        return forge

    return enter


def forgeries(
    kind: str, rows: Mapping[str, tuple[str | None, Forge]], base: str = "simulated"
) -> None:
    """Enter forgeries of one kind, by their names, each with the rule that finds it."""
    FORGERIES.extend(Forgery(kind, name, forge, rule, base) for name, (rule, forge) in rows.items())


@dataclass
class ForgedRun:
    """A copy of a run whose records can be changed."""

    paths: RunPaths
    keep_digest: bool = False
    """Whether the digest of ``run.yaml`` that the primary stated stays as it was."""
    _journals: dict[Path, list[Line]] = field(default_factory=dict)

    @property
    def primary(self) -> list[Line]:
        return self.journal(self.paths.primary_journal)

    def trainer(self, replica: str = "r0", life: str = "0.0") -> list[Line]:
        return self.journal(self.paths.replica_journal(replica, Incarnation.parse(life)))

    def search(self, replica: str = "r0", life: str = "0.0") -> list[Line]:
        return self.journal(self.paths.search_journal(replica, 0, Incarnation.parse(life)))

    def journal(self, path: Path) -> list[Line]:
        """Return the records of a journal, to be changed in place."""
        if path not in self._journals:
            lines = path.read_bytes().splitlines() if path.exists() else []
            self._journals[path] = [json.loads(line) for line in lines]
        return self._journals[path]

    def everywhere(self) -> Iterator[list[Line]]:
        """Yield the records of every journal, of those that are not written yet too."""
        for path in dict.fromkeys([*self.paths.journals(), *self._journals]):
            yield self.journal(path)

    @property
    def settings(self) -> Line:
        """What ``run.yaml`` holds."""
        values: Line = yaml.safe_load(self.paths.manifest.read_text("utf-8"))
        return values

    def set(self, change: Callable[[Line], object]) -> None:
        """Change ``run.yaml``."""
        values = self.settings
        change(values)
        write_whole(self.paths.manifest, yaml.safe_dump(values, sort_keys=False))

    def save(self) -> None:
        """Write what was changed, the numbers of records and the digest of ``run.yaml`` too."""
        digest = self.paths.manifest_digest()
        for line in (line for lines in self.everywhere() for line in lines):
            if not self.keep_digest and line["event"].get("manifest_sha256"):
                line["event"]["manifest_sha256"] = digest
        for path, lines in self._journals.items():
            for number, line in enumerate(lines):
                line["seq"] = number
            if lines or path.exists():
                write_whole(path, "".join(f"{json.dumps(line)}\n" for line in lines))

    def forget(self) -> None:
        """Read the journals again when they are needed."""
        self._journals.clear()

    def reseal(self) -> None:
        """Write report and manifest anew, of what the records say now."""
        self.save()
        shutil.rmtree(self.paths.report, ignore_errors=True)
        write_report(RunView(self.paths))


def copy_of(base: Path, to: Path) -> ForgedRun:
    """Return a copy of a run that shares the files which are not changed.

    All who forge a file put a new one in the place of the old one; those of the report are copies.
    """
    run = ForgedRun(RunPaths(to))
    shutil.copytree(base, to, copy_function=os.link)
    report = RunPaths(base).report
    if report.exists():
        shutil.rmtree(run.paths.report)
        shutil.copytree(report, run.paths.report)
    return run


def of(lines: list[Line], kind: str, **values: object) -> list[Line]:
    """Return the records of a kind whose events have these values."""
    return [
        line
        for line in lines
        if line["event"]["type"] == kind
        and all(line["event"].get(key) == value for key, value in values.items())
    ]


def at(lines: list[Line], kind: str, number: int = 0, **values: object) -> int:
    """Return the place of a record of a kind."""
    return lines.index(of(lines, kind, **values)[number])


def event_of(lines: list[Line], kind: str, number: int = 0, **values: object) -> Line:
    """Return the event of a record of a kind, to be changed in place."""
    event: Line = lines[at(lines, kind, number, **values)]["event"]
    return event


def shift(lines: list[Line], seconds: float) -> None:
    """Let records have been written later, by both clocks."""
    for line in lines:
        line["utc"] += seconds
        line["mono"] += seconds


def like(line: Line, event: Line, seconds: float = 0.0) -> Line:
    """Return a record of an event, so much later than another record of its journal."""
    return {
        **line, "utc": line["utc"] + seconds, "mono": line["mono"] + seconds, "event": event
    }  # fmt: skip


REPLICAS = ("r0", "r1", "r2")


def settings(section: str, **values: object) -> Forge:
    """Return a change of a section of the configuration."""
    return lambda run: run.set(lambda stated: stated["config"][section].update(values))


def run_yaml(**values: object) -> Forge:
    """Return a change of ``run.yaml``."""
    return lambda run: run.set(lambda stated: stated.update(values))


def event(
    kind: str,
    inside: str = "",
    on: tuple[str, ...] = ("r0",),
    number: int = 0,
    where: Mapping[str, object] | None = None,
    **values: object,
) -> Forge:
    """Return a change of the event of a record of a kind, on some replicas.

    Args:
        kind: the record's.
        inside: the dotted path of the part of the event that is changed; all of it by default.
        on: the replicas.
        number: the record's among those of its kind that have the values ``where``.
        values: the new values.
    """

    def change(run: ForgedRun) -> None:
        for replica in on:
            part = event_of(run.trainer(replica), kind, number, **(where or {}))
            for key in inside.split(".") if inside else ():
                part = part[key]
            part.update(values)

    return change


def removed(kind: str, number: int = 0, **values: object) -> Forge:
    """Return a change that removes one record of r0's."""

    def change(run: ForgedRun) -> None:
        lines = run.trainer()
        del lines[at(lines, kind, number, **values)]

    return change


def added(
    kind: str, event: Line, *, number: int = 0, behind: int = 1, seconds: float = 0.0
) -> Forge:
    """Return a change that adds a record to r0's, behind one of a kind or before it."""

    def change(run: ForgedRun) -> None:
        lines = run.trainer()
        place = at(lines, kind, number)
        lines.insert(place + behind, like(lines[place], event, seconds))

    return change


def repeated(kind: str) -> Forge:
    """Return a change that has the first record of a kind twice."""
    return lambda run: added(kind, {**event_of(run.trainer(), kind)})(run)


def keep_the_digest(run: ForgedRun) -> None:
    """Leave the digest of ``run.yaml`` that the primary stated as it was."""
    run.keep_digest = True


def both(*changes: Forge) -> Forge:
    """Return several changes, one after the other."""

    def change(run: ForgedRun) -> None:
        for each in changes:
            each(run)

    return change


def without(kind: str, on: tuple[str, ...] = ("r0",)) -> Forge:
    """Return a change that removes all records of a kind from replicas' journals."""

    def change(run: ForgedRun) -> None:
        for replica in on:
            lines = run.trainer(replica)
            lines[:] = [line for line in lines if line["event"]["type"] != kind]

    return change


def regrow(run: ForgedRun) -> None:
    """Count all graphs anew, and store them: those of proposals, of trials and of their children.

    The search digest states them too.

    A morphism that no longer applies, because its parent is another by now, is left out.
    """
    settings = validate(run.settings["config"], "run.yaml")
    dataset = DatasetInfo.model_validate(event_of(run.trainer(), "dataset_loaded")["dataset"])
    initial = initial_graph(settings, dataset)
    born = [
        line
        for lines in run.everywhere()
        for line in lines
        if line["event"]["type"] in ("proposed", "trial_started")
    ]
    of_trials = {e["event"]["trial"]: e["event"] for e in born if "trial" in e["event"]}
    known: dict[str, Graph] = {}
    store = GraphStore(run.paths)

    def graph_of(event: Line) -> Graph:
        graph = initial if event["parent"] is None else parent_of(event["parent"])
        kept = []
        for step in event["morphisms"]:
            try:
                graph = grow(graph, [from_data(step)])
            except MorphismError:
                continue
            kept.append(step)
        event["morphisms"] = kept
        event["graph"] = store.save(graph)
        return graph

    def parent_of(name: str) -> Graph:
        if name not in known:
            known[name] = initial  # Where a forger has made it its own ancestor.
            known[name] = graph_of(of_trials[name])
        return known[name]

    for line in born:
        event = line["event"]
        graph = parent_of(event["trial"]) if "trial" in event else graph_of(event)
        if "trial" in event:
            counted = count(graph)
            event["train_operations"] = counted.training
            event["validation_operations"] = counted.forward
            event["parameters"], event["depth"] = graph.parameter_count, graph.depth
    named: dict[str, Line] = {_named(line): line["event"] for line in born}
    for line in run.journal(run.paths.digest):
        if (grown := named.get(_named(line))) is not None:
            line["event"] |= {key: grown[key] for key in ("graph", "parent", "morphisms")}


def _named(line: Line) -> str:
    """Return the trial or proposal of a record."""
    return str(line["event"].get("trial") or line["event"]["proposal"])
