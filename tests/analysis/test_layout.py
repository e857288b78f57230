"""Tables and paragraphs on a terminal: within the window, aligned, and with nothing lost."""

from __future__ import annotations

import pytest

from aiperf_hpc.analysis.layout import shortened, tables_as_lines
from aiperf_hpc.results.table import Table, reasons
from aiperf_hpc.streams import width

NAMES = tuple(f"Laboratory supercomputer_{n}_closed_deepcam weak" for n in range(12))
WIDE = Table(
    ("entry", *(f"measure number {n}" for n in range(9)), "verdict"),
    tuple(
        (name, *(f"{row}{n}.25 ± 1.{n}" for n in range(9)), "as good as the reference, by chance")
        for row, name in enumerate(NAMES)
    ),
    title="A table that is wider than any window of a common size, and that has a long title, too",
    notes=("one of many words: " + "word " * 40,),
    missing=("energy: nobody measured it",),
    words=(10,),
)


def lines(table: Table, columns: int) -> list[str]:
    return list(tables_as_lines([table], columns))


@pytest.mark.parametrize("columns", [80, 100, 200])
def test_every_table_fits_the_window_and_loses_no_cell(columns: int) -> None:
    text = lines(WIDE, columns)
    assert max(map(width, text)) <= columns
    joined = " ".join(" ".join(text).split())
    assert all(cell in joined for row in WIDE.rows for cell in row[1:-1])
    assert joined.count("not measured: energy: nobody measured it") == 1
    assert joined.count("word") == 41


@pytest.mark.parametrize(
    ("table", "text"),
    [
        (
            Table(
                ("entry", "minutes", "verdict"),
                (("a", "1,000.00", "PASS"), ("bcd", "1.00", "too few runs")),
                words=(2,),
            ),
            [
                "  entry   minutes  verdict",
                "  a      1,000.00  PASS",
                "  bcd        1.00  too few runs",
            ],
        ),
        (
            Table(("entry", "accelerators each"), (("a", "8"),)),
            ["         accelerators", "  entry          each", "  a                 8"],
        ),
        (
            Table(
                ("metric", *["a figure"] * 5),
                (("time in training and evaluation, share of the whole run", *["1,234.56"] * 5),),
                words=(0,),
            ),
            [
                "  metric                    a figure  a figure  a figure  a figure  a figure",
                "  time in training and      1,234.56  1,234.56  1,234.56  1,234.56  1,234.56",
                "  evaluation, share of the",
                "  whole run",
            ],
        ),
        (
            Table(("network",), tuple((str(n),) for n in range(9)), brief=2),
            ["  network", "  0", "  1", "  and 7 more, all of them with --report or --json"],
        ),
        (Table(notes=("a note",)), ["  a note"]),
        (Table(), []),
    ],
    ids=["alignment", "long head", "names of words", "brief", "notes alone", "nothing"],
)
def test_the_lines_of_a_table(table: Table, text: list[str]) -> None:
    assert lines(table, 80) == text


def test_columns_that_do_not_fit_follow_below_with_the_names() -> None:
    table = Table(("entry", *"abcdef"), (("name", *("1234567890" for _ in range(6))),))
    text = lines(table, 40)
    assert [line.split()[0] for line in text] == ["entry", "name"] * 3
    assert all(len(line) <= 40 for line in text)


def test_shortened_names_still_differ() -> None:
    alike = (f"one laboratory, machine {number}, cosmoflow weak" for number in (1, 2))
    table = Table(("entry", "figure"), tuple((name, "12345678" * 4) for name in alike))
    first, second = lines(table, 60)[1:]
    assert "…" in first
    assert "1, cosmoflow weak  " in first
    assert "2, cosmoflow weak  " in second


def test_a_name_is_shortened_in_the_middle() -> None:
    assert shortened("Lab machine cosmoflow weak", 14) == "Lab ma…ow weak"
    assert shortened("short", 14) == "short"
    assert width(shortened("実験室の計算機 cosmoflow", 12)) <= 12


def test_wide_characters_and_controls_keep_columns_in_line() -> None:
    table = Table(("entry", "n"), (("計算機", "1"), ("a\x1bb\nc", "22")))
    head, wide, odd = lines(table, 80)
    assert odd == r"  a\x1bb c  22"
    assert width(head) == width(wide) == width(odd)


def test_names_with_the_same_reason_are_grouped() -> None:
    missing = {"a": "no end", "b": "no start", "c": "no end", "d": "no end", "e": "no end"}
    assert list(reasons(missing)) == ["a, c, d and 1 more: no end", "b: no start"]
    assert list(reasons(missing, most=5))[0] == "a, c, d, e: no end"
