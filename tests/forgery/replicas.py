"""Forgeries of the replicas and their lives."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable

from tests.forgery.forger import ForgedRun, at, event_of, forgery, like, of, shift

from aiperf_hpc.run.paths import Incarnation, seed_of


def _copy(run: ForgedRun, replica: str, to: str) -> None:
    """Copy a replica's journals under another name, its trials and proposals too."""
    for name in ("trainer", "search"):
        read: Callable[[str], list[dict[str, object]]] = getattr(run, name)
        text = json.dumps(read(replica)).replace(f'"{replica}-', f'"{to}-')
        read(to)[:] = json.loads(text.replace(f'"replica": "{replica}"', f'"replica": "{to}"'))


def _follow(run: ForgedRun, replica: str) -> None:
    """Let the seeds of a replica be what follows from the run's and from its names."""
    seed = run.settings["config"]["seed"]
    for line in run.trainer(replica):
        if line["event"]["type"] == "trial_started":
            number = line["event"]["trial"].rpartition("-t")[2]
            line["event"]["seed"] = seed_of(seed, replica, "trial", int(number))
    for line in run.search(replica):
        if line["event"]["type"] == "proposed":
            worker, _, number = line["event"]["proposal"].rpartition("-")
            which = worker.rpartition("-w")[2]
            line["event"]["seed"] = seed_of(seed, replica, "search", int(which), int(number))


@forgery("replicas", "launches")
def a_replica_that_was_never_launched(run: ForgedRun) -> None:
    _copy(run, "r1", "r3")


@forgery("replicas", "launches")
def more_replicas_than_nodes(run: ForgedRun) -> None:
    _copy(run, "r1", "r3")
    run.primary.insert(4, like(run.primary[3], {**run.primary[3]["event"], "replica": "r3"}))


def _ask_for(run: ForgedRun, place: int, kind: str = "nodes_requested", **said: object) -> None:
    """Let the primary have asked for nodes, behind one of its records."""
    event = {"type": kind, **said}
    run.primary.insert(place + 1, like(run.primary[place], event))


@forgery("replicas", "launches")
def a_replica_that_was_asked_for_when_it_had_begun(run: ForgedRun) -> None:
    more_replicas_than_nodes(run)
    _ask_for(run, len(run.primary) - 2, nodes=4, reason="aiperf scale")


@forgery("replicas", "launches")
def a_replica_that_was_asked_for_and_refused(run: ForgedRun) -> None:
    """It begins long after the refusal: all of it is later than the run's first minutes."""
    _copy(run, "r1", "r3")
    shift([*run.trainer("r3"), *run.search("r3")], 300.0)
    place = at(run.primary, "replica_launched", 0)
    _ask_for(run, place, nodes=4, reason="aiperf scale")
    _ask_for(run, place + 1, "nodes_refused", nodes=4, current_nodes=3, reason="no such nodes")
    _ask_for(run, place + 2, "replica_launched", replica="r3", job="task 3")


@forgery("replicas", "launches")
def a_replica_that_was_asked_for_and_never_launched(run: ForgedRun) -> None:
    _copy(run, "r1", "r3")
    _ask_for(run, at(run.primary, "replica_launched", 0), nodes=4, reason="aiperf scale")


@forgery("replicas", "launches")
def a_replica_of_another_name(run: ForgedRun) -> None:
    _copy(run, "r1", "node7")
    run.primary.insert(4, like(run.primary[3], {**run.primary[3]["event"], "replica": "node7"}))


@forgery("replicas", "search")
def a_further_node_with_a_copy_of_a_replica(run: ForgedRun) -> None:
    """All that is said of the number of nodes says so, and its seeds are computed anew."""
    _copy(run, "r1", "r3")
    _follow(run, "r3")
    run.set(lambda values: values.update(nodes=4))
    for line in of(run.primary, "run_started"):
        line["event"]["nodes"] = 4
    for line in [each for each in run.primary if each["event"].get("replica") == "r1"]:
        event = {**line["event"], "replica": "r3"}
        run.primary.insert(run.primary.index(line) + 1, like(line, event))


@forgery("replicas", "launches")
def a_replica_that_failed_left_out(run: ForgedRun) -> None:
    shutil.rmtree(run.paths.replica("r2"))
    run.primary[:] = [line for line in run.primary if line["event"].get("replica") != "r2"]


@forgery("replicas", "replicas")
def the_records_of_a_replica_left_out(run: ForgedRun) -> None:
    shutil.rmtree(run.paths.replica("r2"))


@forgery("replicas", "config")
def a_replica_left_out_and_a_node_with_it(run: ForgedRun) -> None:
    """Every record agrees but ``run.yaml``."""
    a_replica_that_failed_left_out(run)
    for line in of(run.primary, "run_started"):
        line["event"]["nodes"] = 2


def _second_life(run: ForgedRun, life: str = "0.1") -> None:
    """Let a replica have lived a second time, with the records of another replica."""
    begin = run.trainer("r0")[-1]
    text = json.dumps(run.trainer("r1")).replace('"r1-', f'"r0-{life}-')
    lines = json.loads(text.replace('"replica": "r1"', '"replica": "r0"'))
    shift(lines, begin["utc"] - lines[0]["utc"])
    run.trainer("r0", life)[:] = lines


@forgery("replicas", "launches")
def a_second_life_that_nobody_queued(run: ForgedRun) -> None:
    lines = run.trainer()
    del lines[at(lines, "trial_ended", 4) :]
    _second_life(run)


@forgery("replicas", "launches")
def a_second_life_that_nobody_launched(run: ForgedRun) -> None:
    lines = run.trainer()
    del lines[at(lines, "trial_ended", 4) :]
    _second_life(run, "1.0")


@forgery("replicas", "writers")
def a_second_life_beside_the_first(run: ForgedRun) -> None:
    """It says nowhere that it began, so that it does not end the first."""
    _second_life(run)
    lines = run.trainer("r0", "0.1")
    del lines[0]
    for line in lines:
        shift([line], run.trainer("r1")[0]["utc"] - lines[0]["utc"])


@forgery("replicas", "writers")
def two_lives_in_one_journal(run: ForgedRun) -> None:
    lines = run.trainer()
    place = at(lines, "trial_ended", 4)
    lines.insert(place + 1, like(lines[place], {**lines[0]["event"]}))


@forgery("replicas", "writers")
def the_journal_of_another_replica(run: ForgedRun) -> None:
    event_of(run.trainer(), "replica_started")["replica"] = "r7"


@forgery("replicas", "journals")
def a_life_of_no_number(run: ForgedRun) -> None:
    life = run.paths.incarnation("r0", Incarnation())
    shutil.copytree(life, life.with_name("first"))


@forgery("replicas", "writers")
def a_journal_of_no_process(run: ForgedRun) -> None:
    own = run.paths.replica_journal("r0")
    run.journal(own.with_name("more.jsonl")).extend(run.trainer()[:2])


@forgery("replicas", "writers")
def a_second_search_workers_journal_of_the_first(run: ForgedRun) -> None:
    path = run.paths.search_journal("r0", 1)
    run.journal(path).extend(json.loads(json.dumps(run.search()[:1])))


@forgery("replicas", "launches")
def a_replica_that_the_primary_saw_before_it_began(run: ForgedRun) -> None:
    """Its first minute is moved, so that it counts to no replica's time."""
    checked = of(run.primary, "node_checked", replica="r0")
    assert checked
    lines = run.trainer()
    late = checked[0]["utc"] + 5.0 - lines[0]["utc"]
    for line in lines:
        if line["utc"] < checked[0]["utc"] + 5.0:
            line["utc"] += min(late, checked[0]["utc"] + 5.0 - line["utc"])
            line["mono"] = line["utc"] - run.primary[0]["utc"]


@forgery("replicas", "launches", base="two-nodes")
def a_replica_that_ended_after_the_primary_had_seen_it(run: ForgedRun) -> None:
    lines = run.trainer("r1")
    shift(lines[-2:], 5.0)
    lines[-2]["event"]["seconds"]["other"] += 5.0
