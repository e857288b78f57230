"""Colors of a run on a terminal: people who see two hues only tell them apart."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from rich.ansi import AnsiDecoder
from rich.style import Style
from tests.support.run_factory import Plan, write_run
from tests.support.terminal import Terminal

from aiperf_hpc.results.terminal import progress as progress_module
from aiperf_hpc.results.terminal.progress import STYLES, TROUBLE_STYLE, ProgressDisplay
from aiperf_hpc.results.views.cached_view import CachedView
from aiperf_hpc.results.views.run_view import RunView

Color = tuple[int, int, int]
SEEN = {
    "protanopia": ((0.11238, 0.88762, 0.0), (0.11238, 0.88762, 0.0), (0.00401, -0.00401, 1.0)),
    "deuteranopia": ((0.29275, 0.70725, 0.0), (0.29275, 0.70725, 0.0), (-0.02234, 0.02234, 1.0)),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}  # fmt: skip
"""Linear RGB as seen with a kind of cones missing: Viénot and others 1999, Machado and others
2009."""


def hue(color: Color, kind: str) -> NDArray[np.float64]:
    """Return the fractions of red, green and blue in a color as seen."""
    linear = (np.array(color) / 255.0) ** 2.2
    seen = np.clip(np.array(SEEN[kind]) @ linear, 0.0, None)
    fractions: NDArray[np.float64] = seen / seen.sum()
    return fractions


def alike(colors: set[Color]) -> list[tuple[str, Color, Color]]:
    """Return the pairs of colors that only differ in brightness for some people; none of greys."""
    pairs = combinations(sorted(c for c in colors if len(set(c)) > 1), 2)
    return [
        (kind, *pair)
        for pair in pairs
        for kind in SEEN
        if np.linalg.norm(hue(pair[0], kind) - hue(pair[1], kind)) < 0.15
    ]


def test_the_colors_of_a_run_are_told_apart_by_everybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_module, "LINE_SECONDS", 0.0)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal(120)
    run = write_run(tmp_path / "run", Plan(replicas=2, trials=5, ended=False))
    progress = ProgressDisplay(CachedView(RunView(run), fresh=0.0), terminal.output)
    progress.tick()
    printed = list(AnsiDecoder().decode(terminal.raw))
    terminal.close()
    used = [span.style for text in printed for span in text.spans]
    used += map(Style.parse, (*STYLES.values(), TROUBLE_STYLE))
    colors = {
        style.color.get_truecolor()[:3]
        for style in used
        if isinstance(style, Style) and style.color is not None
    }
    assert len(colors) >= 3
    assert alike(colors) == []


def test_red_and_green_are_not() -> None:
    assert {kind for kind, *_ in alike({(205, 0, 0), (0, 205, 0)})} == {
        "protanopia",
        "deuteranopia",
    }
