"""Forgeries of graphs: what was proposed, of which parent, and what was trained."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from tests.forgery.forger import (
    REPLICAS,
    ForgedRun,
    at,
    both,
    event,
    event_of,
    forgeries,
    forgery,
    keep_the_digest,
    of,
    regrow,
    settings,
    shift,
)

LARGER = "s2b1_shortcut_conv"
"""A convolution whose kernel can be enlarged within all bounds."""


def _grown(run: ForgedRun, trial: str = "r0-t4") -> dict[str, Any]:
    return event_of(run.trainer(), "trial_started", trial=trial)


def _proposal(run: ForgedRun, trial: str = "r0-t4") -> dict[str, Any]:
    return event_of(run.search(), "proposed", proposal=_grown(run, trial)["proposal"])


@forgery("graphs", "graphs")
def a_stored_graph_in_the_place_of_another(run: ForgedRun) -> None:
    one, other = (run.paths.graph(_grown(run, name)["graph"]) for name in ("r0-t1", "r0-t2"))
    content = one.read_bytes()
    other.unlink()
    other.write_bytes(content)


@forgery("graphs", "candidates")
def a_larger_graph_than_was_proposed(run: ForgedRun) -> None:
    """A kernel is larger, and all that follows of the graph is counted anew."""
    for line in of(run.trainer(), "trial_started"):
        if line["event"]["morphisms"]:
            line["event"]["morphisms"].append(
                {"kind": "kernel", "conv": "s1b1_b_conv", "kernel": 7}
            )
            break
    regrow(run)


@forgery("graphs", "candidates")
def the_graph_of_another_proposal(run: ForgedRun) -> None:
    one, other = _grown(run, "r0-t2"), _grown(run, "r0-t3")
    for key in ("graph", "parent", "morphisms"):
        one[key] = other[key]
    regrow(run)


@forgery("graphs", "candidates")
def a_proposal_that_there_was_not(run: ForgedRun) -> None:
    for line in of(run.trainer(), "trial_started", proposal=_grown(run)["proposal"]):
        line["event"]["proposal"] = "r0-w0-99"


@forgery("graphs", "candidates")
def no_journals_of_the_search(run: ForgedRun) -> None:
    run.search().clear()
    run.paths.search_journal("r0", 0).unlink()


@forgery("graphs", "candidates")
def a_proposal_of_another_replica(run: ForgedRun) -> None:
    other = event_of(run.search("r1"), "proposed")
    started = _grown(run, "r0-t2")
    started.update(proposal=other["proposal"], parent=other["parent"], morphisms=other["morphisms"])
    regrow(run)


def _of_parent(run: ForgedRun, trial: str, parent: str) -> None:
    """Let a trial's graph, and its proposal's, have grown from another parent."""
    proposal = _proposal(run, trial)
    for line in of(run.trainer(), "trial_started", proposal=proposal["proposal"]):
        line["event"]["parent"] = parent
    proposal["parent"] = parent
    regrow(run)


@forgery("graphs", "candidates")
def a_parent_that_is_not_its_proposals(run: ForgedRun) -> None:
    _grown(run)["parent"] = "r0-t1" if _grown(run)["parent"] != "r0-t1" else "r0-t2"
    regrow(run)


@forgery("graphs", "candidates")
def a_parent_that_started_later(run: ForgedRun) -> None:
    of_it = event_of(run.trainer(), "trial_started", trial="r0-t8")
    _of_parent(run, "r0-t2", of_it["trial"])


@forgery("graphs", "candidates")
def a_parent_whose_weights_were_not_kept(run: ForgedRun) -> None:
    parent = _grown(run)["parent"]
    lines = run.trainer(parent.partition("-")[0])
    event_of(lines, "trial_ended", trial=parent)["checkpoint"] = False


@forgery("graphs", "candidates")
def a_parent_whose_weights_were_deleted(run: ForgedRun) -> None:
    """It is the latest trial's, of a trial that had been dropped minutes before."""
    dropped = event_of(run.trainer(), "checkpoint_deleted")["trial"]
    last = of(run.search(), "proposed")[-1]["event"]
    last["parent"] = dropped
    for line in of(run.trainer(), "trial_started", proposal=last["proposal"]):
        line["event"]["parent"] = dropped
    regrow(run)


@forgery("graphs", "candidates")
def a_trial_grown_before_it_was_proposed(run: ForgedRun) -> None:
    lines, proposal = run.search(), _grown(run, "r0-t2")["proposal"]
    shift(lines[at(lines, "proposed", proposal=proposal) :], 400.0)


@forgery("graphs", "candidates")
def bounds_exceeded(run: ForgedRun) -> None:
    """One proposal makes all kernels large: more operations than a candidate may have."""
    proposal = _proposal(run, "r0-t2")
    steps = [
        {"kind": "kernel", "conv": f"s{stage}b1_b_conv", "kernel": 7} for stage in (1, 2, 3, 4)
    ]
    for line in of(run.trainer(), "trial_started", proposal=proposal["proposal"]):
        line["event"]["morphisms"] = steps
    proposal["morphisms"] = steps
    regrow(run)


def _enlarge(run: ForgedRun, proposals: Iterable[dict[str, Any]]) -> None:
    """Let proposals, and all trials of them, have another morphism, if it applies."""
    for proposal in proposals:
        name, steps = proposal["proposal"], len(proposal["morphisms"])
        trials = [
            line["event"]
            for lines in list(run.everywhere())
            for line in of(lines, "trial_started", proposal=name)
        ]
        for each in (proposal, *trials):
            each["morphisms"].insert(steps, {"kind": "kernel", "conv": LARGER, "kernel": 3})
    regrow(run)


@forgery("graphs", "search")
def every_proposal_enlarged(run: ForgedRun) -> None:
    journals = [of(run.search(replica), "proposed") for replica in REPLICAS]
    _enlarge(run, [line["event"] for lines in journals for line in lines])


@forgery("graphs", "search")
def one_proposal_enlarged(run: ForgedRun) -> None:
    _enlarge(run, [_proposal(run)])


@forgery("graphs", "search")
def another_result_in_the_search_digest(run: ForgedRun) -> None:
    digest = run.journal(run.paths.digest)
    ended = next(line["event"] for line in digest if line["event"].get("objective"))
    ended["objective"] += 0.01


@forgery("graphs", "shapes")
def stored_weights_of_another_graph(run: ForgedRun) -> None:
    trials = (line for name in REPLICAS for line in of(run.trainer(name), "trial_started"))
    graphs = {line["event"]["trial"]: line["event"]["graph"] for line in trials}
    one, *rest = sorted(run.paths.replicas.glob("*/trained/*"))
    other = next(path for path in rest if graphs[path.stem] != graphs[one.stem])
    content = other.read_bytes()
    one.unlink()
    one.write_bytes(content)


def _another_graph(run: ForgedRun) -> None:
    _grown(run)["graph"] = _grown(run, "r0-t1")["graph"]


def _more_operations(run: ForgedRun) -> None:
    _grown(run)["train_operations"] *= 2


def _fewer_parameters(run: ForgedRun) -> None:
    _grown(run)["parameters"] //= 2


_grown_with = partial(event, "trial_started", where={"trial": "r0-t4"})
forgeries(
    "graphs",
    {
        "a graph of another hash": ("graphs", _another_graph),
        "more operations than the graph has": ("counts", _more_operations),
        "fewer parameters than the graph has": ("counts", _fewer_parameters),
        "a morphism left out": ("graphs", _grown_with(morphisms=[])),
        "a graph that nobody proposed": ("candidates", _grown_with(proposal=None)),
        "bounds raised afterwards":
            ("config", both(settings("search", max_operations_ratio=100.0), keep_the_digest)),
    },
)  # fmt: skip
