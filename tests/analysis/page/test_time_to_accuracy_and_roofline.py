"""Rooflines and times to accuracy: what is drawn, read from the SVG."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from html import unescape
from itertools import pairwise

import pytest

from aiperf_hpc.analysis.page.plots import Panel, Point, roofline_plot
from aiperf_hpc.analysis.page.time_to_accuracy import TimeCurve, cost_plot, threshold_plot
from aiperf_hpc.analysis.sections.cost import Priced
from aiperf_hpc.results.report.plots.figure import Plot

ROOFS = {"fp32": 1e11, "bf16": 2e10}
POINT = Point("abcdef12", 2.0, 6.0, 1.2e10, "fp32")
LINE = re.compile(r'<path d="M([\d.]+),([\d.]+)L([\d.]+),([\d.]+)"[^>]*?stroke-width:1.4')


def roofline_svg(roofs: dict[str, float], *panels: Panel) -> Plot:
    plot = roofline_plot("run", roofs, panels, "roofline")
    assert plot is not None
    return plot


def lines(svg: str) -> list[tuple[float, float, float, float]]:
    """The ends of the ceilings, in points."""
    return [tuple(map(float, found)) for found in LINE.findall(svg)]  # type: ignore[misc]


def words(plot: Plot) -> str:
    return "\n".join(ET.fromstring(str(plot.svg)).itertext())  # noqa: S314 -- roofline_svg here


def test_the_slope_meets_each_peak_where_the_arithmetic_says() -> None:
    """1e11 and 2e10 operations a second over 1e10 bytes a second: at 10 and at 2 a byte.

    On logarithmic axes the slope is a straight line, on which both flat lines begin.
    """
    slope, high, low = lines(str(roofline_svg(ROOFS, Panel("memory", 1e10, [POINT])).svg))
    assert (slope[2], slope[3]) == pytest.approx((high[0], high[1]))
    assert high[1] == pytest.approx(high[3])
    assert low[1] == pytest.approx(low[3])
    assert low[1] > high[1]  # Downwards.
    rise = (slope[3] - slope[1]) / (slope[2] - slope[0])
    assert low[1] - slope[1] == pytest.approx(rise * (low[0] - slope[0]), abs=0.03)
    # A factor of 5 in operations a second for one of 5 in operations a byte.
    per_ratio = (low[1] - high[1]) / math.log(5)
    assert (high[0] - low[0]) / math.log(5) == pytest.approx(-per_ratio / rise, rel=1e-3)


def test_everything_is_named() -> None:
    plot = roofline_svg(
        ROOFS, Panel("memory", 1e10, [POINT]), Panel("network", 1e9, [POINT]),
        Panel("storage", 1e8, [POINT]),
    )  # fmt: skip
    text = words(plot)
    for said in (
        "memory 10.0 GB/s", "network 1.00 GB/s", "storage 100 MB/s", "fp32 100 GOPS",
        "bf16 20.0 GOPS", "operations/B of memory", "operations/B reduced", "operations/B read",
    ):  # fmt: skip
        assert said in text
    assert "12% of its peak" in plot.description
    assert plot.title == "Roofline of run"


def test_peaks_close_together_share_a_line_of_words() -> None:
    plot = roofline_svg({"bf16": 1e11, "fp16": 0.99e11}, Panel("memory", 1e10, [POINT]))
    assert "bf16 100 GOPS, fp16 99.0 GOPS" in words(plot)


def test_each_precision_has_its_mark() -> None:
    both = [POINT, POINT._replace(precision="bf16", most_intensity=2.0)]
    assert "(ring: fp32, square: bf16)" in roofline_svg(ROOFS, Panel("memory", 1e10, both)).caption
    alone = roofline_svg(ROOFS, Panel("memory", 1e10, both[1:])).caption
    assert "(square: bf16)" in alone
    assert "its line ends" not in alone


def test_marks_are_at_their_values() -> None:
    """Three points, each ten times the last in both: equally far apart, on one straight line."""
    points = [Point(str(n), 10.0**n, 10.0**n, 10.0 ** (8 + n), "fp32") for n in range(3)]
    svg = str(roofline_svg(ROOFS, Panel("memory", 1e10, points)).svg)
    marks = re.findall(r'<use [^>]*?\bx="([\d.]+)" y="([\d.]+)" [^>]*fill:var\(--surface\)', svg)
    places = [(float(x), float(y)) for x, y in marks]
    assert len(places) == 3
    (one, two) = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(places)]
    assert one == pytest.approx(two, abs=0.02)
    assert one[0] > 0 > one[1]


def test_without_points_or_peaks_there_is_no_drawing() -> None:
    assert roofline_plot("run", ROOFS, [Panel("memory", 1e10, [])], "roofline") is None
    assert roofline_plot("run", ROOFS, [], "roofline") is None
    assert roofline_plot("run", {}, [Panel("memory", 1e10, [POINT])], "roofline") is None


FAST = TimeCurve("b/fast", (10.0, 20.0, 100.0), ())
SLOW = TimeCurve("b/slow", (30.0, 40.0, 60.0), (2,))


def texts(plot: Plot | None) -> list[str]:
    assert plot
    ET.fromstring(str(plot.svg))  # noqa: S314 -- drawn here
    found = re.findall(r"<text[^>]*>(.*?)</text>", plot.svg, re.DOTALL)
    return [unescape(re.sub(r"<[^>]*>", "", text)).strip() for text in found]


def drawn(plot: Plot | None, name: str) -> list[tuple[float, float]]:
    """Return where the points of a group are, in SVG's coordinates."""
    assert plot
    group = re.search(rf'<g id="[^"]*-{name}">(.*?)</g>\s*</g>', plot.svg, re.DOTALL)
    assert group
    uses = re.findall(r'<use [^>]*?\bx="([^"]*)" y="([^"]*)"', group[1])
    return [(float(x), float(y)) for x, y in uses]


def place_of(plot: Plot, number: str) -> float:
    """Return where a number stands along the horizontal axis."""
    ticks = re.findall(
        r'xtick_\d+">.*?<use [^>]*?\bx="([^"]*)".*?<text[^>]*>([^<]*)</text>', plot.svg, re.DOTALL
    )
    return {text.strip(): float(x) for x, text in ticks}[number]


def over(*curves: TimeCurve, thresholds: tuple[float, ...] = (90.0, 92.0, 94.0)) -> Plot | None:
    return threshold_plot("b, accuracy", thresholds, 94.0, curves, "over")


def test_lines_are_named_and_the_target_is_marked() -> None:
    said = texts(over(FAST, SLOW))
    assert {"fast", "slow", "target 94", "time to the threshold, s (log scale)"} <= set(said)
    plot = over(FAST, SLOW)
    assert plot
    assert "2 of 2 entries reach 90, the fastest b/fast in 10 s" in plot.description
    assert "2 of 2 entries reach 94, the fastest b/slow in 60 s" in plot.description
    assert "changes at 1 of 3 thresholds" in plot.description


def test_each_change_has_a_ring() -> None:
    """The slower one, the second line, has overtaken the first at 94."""
    plot = over(FAST, SLOW)
    assert plot
    assert 'changes-0"/>' in plot.svg
    ((x, _),) = drawn(plot, "changes-1")
    assert place_of(plot, "92") < x
    assert x == pytest.approx(place_of(plot, "94"))


def test_more_lines_than_can_be_told_apart_are_counted() -> None:
    curves = [TimeCurve(f"b/e{i}", (1.0 + i, 2.0 + i, None), ()) for i in range(11)]
    said = texts(over(*curves))
    assert "3 slower ones" in said
    assert "e7" in said
    assert "e8" not in said


@pytest.mark.parametrize(("first", "anchor"), [(94.0, "start"), (90.0, "end")])
def test_the_target_is_named_beside_its_line_and_off_the_axis(first: float, anchor: str) -> None:
    plot = over(FAST, thresholds=(first, 0.5 * (first + 98.0), 98.0 if first == 94.0 else 94.0))
    assert plot
    (style,) = re.findall(r'<text style="([^"]*)"[^>]*>target 94', plot.svg)
    assert f"text-anchor:{anchor}" in style


def test_a_threshold_that_nobody_reached_ends_the_lines() -> None:
    plot = over(TimeCurve("b/short", (10.0, None, None), ()))
    assert plot
    assert "0 of 1 entries reach 94" in plot.description
    assert "nan" not in plot.svg
    assert over(TimeCurve("b/never", (None, None, None), ())) is None


def test_of_errors_the_hardest_is_to_the_right_too() -> None:
    plot = over(FAST, thresholds=(0.2, 0.16, 0.12))
    assert plot
    assert place_of(plot, "0.12") > place_of(plot, "0.16") > place_of(plot, "0.2")


def paid(name: str, seconds: float, cost: float, *, on_front: bool) -> Priced:
    return Priced(
        entry=name, seconds=seconds, cost=cost, on_front=on_front, price_per_hour=1.0,
        price_source="entry", price_index=None,
    )  # fmt: skip


def costs(*points: Priced) -> Plot:
    return cost_plot("b, accuracy ≥ 94", "USD", points, "costs")


def test_time_and_cost_with_their_front() -> None:
    points = (
        paid("b/fast", 10.0, 5.0, on_front=True),
        paid("b/beaten", 20.0, 50.0, on_front=False),
        paid("b/cheap", 100.0, 0.5, on_front=True),
    )
    plot = costs(*points)
    said = texts(plot)
    cost = "cost to the target, USD (log scale)"
    assert {"fast", "beaten", "cheap", cost, "1", "10"} <= set(said)
    front, beaten = drawn(plot, "front"), drawn(plot, "beaten")
    assert (len(front), len(beaten)) == (2, 1)
    # To the right is slower, and further up (less in SVG) is dearer.
    assert front[0][0] < beaten[0][0] < front[1][0]
    assert beaten[0][1] < front[0][1] < front[1][1]
    assert plot
    assert "2 on the front" in plot.description


def test_names_do_not_cover_each_other() -> None:
    close = [paid(f"b/entry-{i}", 10.0 + i / 10, 1.0 + i / 10, on_front=i == 0) for i in range(30)]
    far = paid("b/far", 1e6, 1e6, on_front=False)
    named = [text for text in texts(costs(*close, far)) if text.startswith("entry-")]
    assert "entry-0" in named
    assert len(named) < 10


def test_one_entry_alone() -> None:
    assert {"only"} <= set(texts(costs(paid("b/only", 10.0, 5.0, on_front=True))))


@pytest.mark.parametrize("name", ["b/a$x_1$", "b/<script>&", "b/" + "long" * 30])
def test_names_of_any_kind_are_text(name: str) -> None:
    own = name.removeprefix("b/")
    shown = own if len(own) <= 36 else f"{own[:35]}…"
    assert shown in texts(costs(paid(name, 10.0, 5.0, on_front=True)))
    assert shown in texts(over(TimeCurve(name, (1.0, 2.0, 3.0), ())))
