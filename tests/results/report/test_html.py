"""The page of the report as a style sheet and a tree of elements; tests/browser draws it."""

from __future__ import annotations

import re
from importlib import resources
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest
from tests.support.pages import Attributes, Page
from tests.support.run_factory import Plan, write_run

from aiperf_hpc.formatting import si
from aiperf_hpc.results.report import timeline
from aiperf_hpc.results.report.document import Report, make_report
from aiperf_hpc.results.report.html import MOST_REPLICAS, node_table, render
from aiperf_hpc.results.report.parts import TrialReport
from aiperf_hpc.results.report.timeline import LEAST_BAR
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.results.views.time_split import NetworkWait, network_wait
from aiperf_hpc.run import records
from aiperf_hpc.run.history import ReplicaHistory
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.trial import Machine, TimePhase

CSS = (resources.files("aiperf_hpc.results.report") / "report.css").read_text("utf-8")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return make_report(
        RunView.read(write_run(tmp_path_factory.mktemp("page"), Plan(replicas=1, trials=5)))
    )


def with_trials(document: Report, seconds: list[float], *, replicas: int = 1) -> Report:
    """Return a report whose replicas had trials of these lengths, one right after the other."""
    trials: list[TrialReport] = []
    for replica in range(replicas):
        begin = 0.0
        for number, length in enumerate(seconds):
            trials.append(
                document.trials[0].model_copy(
                    update={
                        "id": f"r{replica}-t{number}",
                        "replica": f"r{replica}",
                        "round": 1 + number // 3,
                        "parent": None,
                        "started_seconds": begin,
                        "training_started_seconds": begin,
                        "seconds": length,
                    }
                )
            )
            begin += length
    one = document.replicas[0]
    return document.model_copy(
        update={
            "trials": tuple(trials),
            "replicas": tuple(one.model_copy(update={"id": f"r{n}"}) for n in range(replicas)),
            "score": document.score.model_copy(update={"elapsed_seconds": sum(seconds)}),
        }
    )


class Lanes:
    """What is drawn on the time line of each replica."""

    def __init__(self, text: str) -> None:
        self.lanes: list[list[tuple[str, Attributes]]] = []
        for tag, attributes, around in Page(text).elements:
            if tag == "svg" and attributes.get("class") == "lane":
                self.lanes.append([])
            elif any(each.get("class") == "lane" for _, each in around):
                self.lanes[-1].append((tag, attributes))

    def places(self, lane: int, tag: str, kind: str = "") -> list[float]:
        """Return where elements of a lane begin, in percent."""
        return [
            float(attributes["x" if tag in ("rect", "text") else "x1"].rstrip("%"))
            for name, attributes in self.lanes[lane]
            if name == tag and (not kind or attributes.get("class", "") == kind)
        ]

    def widths(self, lane: int) -> list[float]:
        return [float(a["width"].rstrip("%")) for name, a in self.lanes[lane] if name == "rect"]


def test_each_of_28_trials_has_an_edge_of_its_own(small: Report) -> None:
    lanes = Lanes(render(with_trials(small, [60.0] * 28, replicas=2), []))
    assert len(lanes.lanes) == 2
    for lane in range(2):
        edges = lanes.places(lane, "line", "edge")
        assert edges == pytest.approx([100.0 * n / 28 for n in range(28)], abs=0.01)
        assert [w for w in lanes.widths(lane) if w > 0] == pytest.approx([100 / 28] * 28, abs=0.01)
        # Ten rounds of three trials, each with its number.
        assert lanes.places(lane, "text") == pytest.approx(edges[::3])
    edge = re.search(r"svg\.lane \.edge \{([^}]*)\}", CSS)
    assert edge is not None
    assert "stroke: var(--surface)" in edge[1]


def test_trials_that_are_too_short_to_be_told_apart_are_drawn_as_one_and_counted(
    small: Report,
) -> None:
    lengths = [30.0] + [0.01] * 400 + [30.0] + [0.01] + [30.0]
    text = render(with_trials(small, lengths), [])
    lanes = Lanes(text)
    assert "401 trials are too short" not in text
    assert "400 trials are too short to be distinguished here" in text
    assert "several trials</li>" in text
    assert len(lanes.places(0, "line", "edge")) < 20
    several = [w for w, (_, a) in zip(lanes.widths(0), _rects(lanes), strict=True)
               if a["class"] == "several"]  # fmt: skip
    assert len(several) > 1
    assert min(several[:-1]) >= LEAST_BAR
    shown = sum(int(n) for n in re.findall(r"<title>[^<]*: (\d+) trials, ", text))
    assert shown == 400


def _rects(lanes: Lanes) -> list[tuple[str, Attributes]]:
    return [element for element in lanes.lanes[0] if element[0] == "rect"]


def test_of_too_many_replicas_the_page_says_which_it_draws(small: Report) -> None:
    text = render(with_trials(small, [60.0], replicas=MOST_REPLICAS + 1), [])
    assert len(Lanes(text).lanes) == MOST_REPLICAS
    assert (
        f"Only the {MOST_REPLICAS} of {MOST_REPLICAS + 1} replicas that trained and evaluated"
        in text
    )


def test_the_number_of_a_round_that_has_no_room_is_left_out(small: Report) -> None:
    lanes = Lanes(render(with_trials(small, [100.0, 100.0, 100.0, 1.0, 1.0, 1.0, 100.0]), []))
    assert lanes.places(0, "text") == pytest.approx([0.0, 100 * 303 / 403], abs=0.01)
    assert len([a for name, a in lanes.lanes[0] if name == "line" and "class" not in a]) == 3


def test_a_trial_in_building_has_a_bar(small: Report) -> None:
    trial = with_trials(small, [10.0]).trials[0]
    waiting = trial.model_copy(update={"training_started_seconds": None, "state": "compiling"})
    (bar,) = timeline._bars([waiting], 20.0)
    assert (bar.kind, bar.start, bar.width) == ("building", 0.0, 50.0)


def test_the_legend_of_the_timeline_has_what_is_drawn(small: Report) -> None:
    def legend(document: Report) -> list[str]:
        (found,) = re.findall(r'id="timeline".*?<ul class="legend">(.*?)</ul>',
                              render(document, []), re.DOTALL)  # fmt: skip
        return re.findall(r"</svg>([^<]+)</li>", found)

    ready = with_trials(small, [10.0, 10.0])
    assert legend(ready) == ["completed"]
    first, second = ready.trials
    built = second.model_copy(update={"training_started_seconds": 12.0})
    stopped = first.model_copy(update={"state": "stopped early"})
    assert legend(ready.model_copy(update={"trials": (stopped, built)})) == [
        "building", "completed", "stopped early"
    ]  # fmt: skip
    training = second.model_copy(update={"state": "training"})
    assert legend(ready.model_copy(update={"trials": (training,)})) == ["not ended"]


def test_phases_are_drawn_where_they_were_and_the_legend_names_no_other(small: Report) -> None:
    """Trials from 0 and 50 s, each with 10 s of building and a first step after it."""
    document = with_trials(small, [50.0, 50.0])
    spent = {TimePhase.BUILD: 10.0, TimePhase.TRAIN: 30.0, TimePhase.STORE: 10.0,
             TimePhase.DATA: 0.01}  # fmt: skip
    trials = [
        trial.model_copy(update={"training_started_seconds": begin + 10.0, "phase_seconds": spent})
        for trial, begin in zip(document.trials, (0.0, 50.0), strict=True)
    ]
    document = document.model_copy(update={"trials": tuple(trials)})
    (lane,) = (timeline.lane(each.id, document) for each in document.replicas)
    assert lane.phases == {
        "train": "M100.0 0h300.0v10h-300.0zM600.0 0h300.0v10h-300.0z",
        "build": "M0.0 0h100.0v10h-100.0zM500.0 0h100.0v10h-100.0z",
        "store": "M400.1 0h100.0v10h-100.0zM900.1 0h100.0v10h-100.0z",
    }
    assert timeline.phase_legend([lane]) == list(lane.phases)


def test_each_node_has_a_row_with_its_work(small: Report) -> None:
    table = node_table(small)
    (row,) = (dict(zip(table.columns, each, strict=True)) for each in table.rows)
    assert row["OPS"] == si(small.score.ops, "OPS")
    assert (row["Replicas"], row["Trials"]) == ("1", "5")
    assert "Energy" not in row


def test_a_trial_counts_on_the_host_that_trained_it(small: Report) -> None:
    """Its replica may have restarted elsewhere since."""
    first, *others = small.trials
    moved = (first.model_copy(update={"host": "spare"}), *others)
    table = node_table(small.model_copy(update={"trials": moved}))
    assert [row[table.columns.index("Trials")] for row in table.rows] == ["4", "1"]


def test_figures_are_downloaded_as_svg_and_csv(small: Report) -> None:
    links = {
        a["download"]: unquote(a["href"].partition(",")[2])
        for a in Page(render(small, small.series)).named("a") if "download" in a
    }  # fmt: skip
    assert {name.rpartition(".")[2] for name in links} == {"svg", "csv"}
    assert links["ops-the-score.csv"].startswith("series,minutes since the start,")
    for name, content in links.items():
        if name.endswith(".svg"):
            assert ElementTree.fromstring(content).tag == "{http://www.w3.org/2000/svg}svg"  # noqa: S314 -- drawn here
            assert "var(--" not in content
            assert re.findall(r' (?:d|x|y)="[^"]*\d\.\d{3}', content) == [], "hundredths suffice"


# What the page needs to be read on a phone, as far as no browser is needed to see it.


def test_all_that_is_wide_scrolls_in_a_region_that_the_keyboard_reaches(
    default_run: RunPaths,
) -> None:
    text = default_run.report_html.read_text("utf-8")
    page = Page(text)
    wide = [each for each in page.elements
            if each.tag in ("table", "pre") or each.attributes.get("class") == "plot"]  # fmt: skip
    assert {each.tag for each in wide} == {"table", "pre", "svg"}
    for tag, _, around in wide:
        (region,) = (each for _, each in around if each.get("role") == "region")
        assert region["tabindex"] == "0", tag
    names = [a.get("aria-label") or a.get("aria-labelledby") for _, a, _ in page.elements
             if a.get("role") == "region"]  # fmt: skip
    assert all(names)
    assert len(set(names)) == len(names)
    (viewport,) = (a["content"] for a in page.named("meta") if a.get("name") == "viewport")
    assert viewport == "width=device-width, initial-scale=1"
    # A figure with a caption may have no role of its own.
    assert not [attributes for attributes in page.named("figure") if "role" in attributes]


def waiting(*, ranks: int, accelerators: int, seconds: dict[TimePhase, float]) -> ReplicaHistory:
    """Return a replica whose ranks have so many accelerators each."""
    machine = Machine(
        host="n", cpu="c", cores=(0,), memory_bytes=1, accelerators=("a GPU",) * accelerators,
        versions={},
    )  # fmt: skip
    hosts = ("n",) * ranks if ranks > 1 else ()
    started = records.ReplicaStarted(
        replica="r0", pid=1, engine="torch", machine=machine, hosts=hosts
    )
    return ReplicaHistory("r0", all_started=[(0.0, started)], seconds=seconds)


def test_accelerators_wait_for_a_network_each_for_itself() -> None:
    """One waits 30 s of 100, four wait 10 s of 50 each: 70 s of 300."""
    alone = {TimePhase.SEARCH_WAIT: 10.0, TimePhase.BUILD: 20.0, TimePhase.TRAIN: 70.0}
    four = {TimePhase.BUILD: 10.0, TimePhase.TRAIN: 40.0}
    replicas = [
        waiting(ranks=1, accelerators=1, seconds=alone),
        waiting(ranks=4, accelerators=1, seconds=four),
        waiting(ranks=1, accelerators=0, seconds=alone),
        ReplicaHistory("r9"),
    ]
    wanted = NetworkWait(accelerators=5, seconds=70.0, fraction=70.0 / 300.0)
    assert network_wait(replicas) == wanted
    assert network_wait(replicas[2:]) is None


def test_the_page_says_how_long_accelerators_waited_for_a_network(default_report: Report) -> None:
    wait = NetworkWait(accelerators=1024, seconds=7200.0, fraction=0.0625)
    page = render(default_report.model_copy(update={"network_wait": wait}), [])
    assert (
        "The 1,024 accelerators waited 2 h 00 min 00 s in total for a network to train, 6.2% "
        "of their recorded time."
    ) in page
