"""Colours: those of the page's style sheet, of a drawing that stands alone, and of accuracies.

Matplotlib knows no style sheets: it is given stand-in colours, which are then replaced by CSS
variables, so that one drawing serves light, dark and paper.
"""

from __future__ import annotations

import matplotlib as mpl

INK, MUTED, GRID, CURVE, LIMIT, PAPER = (f"#0{n}0{n}0{n}" for n in range(1, 7))
_VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--line",
    CURVE: "--curve",
    LIMIT: "--bad",
    PAPER: "--surface",
}
_ALONE = {
    "--ink": "#1a1f25",
    "--muted": "#56616c",
    "--line": "#dde2e7",
    "--curve": "#0b5c99",
    "--bad": "#b3261e",
    "--surface": "#ffffff",
}


def of_the_page(svg: str) -> str:
    """Return a drawing in the colours of the style sheet of the page that it will stand in."""
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, f"var({variable})")
    return svg


def of_its_own(svg: str) -> str:
    """Return a drawing that was made for a page in the colours of one that stands in none."""
    for variable, colour in _ALONE.items():
        svg = svg.replace(f"var({variable})", colour)
    return svg


def quality_colour(place: float) -> str:
    """Return the colour of a place between 0 and 1 on a scale that colour-blind readers see."""
    red, green, blue, _ = mpl.colormaps["cividis"](min(1.0, max(0.0, place)), bytes=True)
    return f"#{red:02x}{green:02x}{blue:02x}"
