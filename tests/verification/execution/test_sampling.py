"""A drawing can be repeated, and finds wrong trials as often as it is said to."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.verification.execution.outcome import chance, drawn, seed_for

TRIALS = [f"r{replica}-t{trial}" for replica in range(4) for trial in range(1, 6)]


def test_a_drawing_follows_from_its_seed_and_no_order() -> None:
    first = drawn(TRIALS, 3, "seed")
    assert first == drawn(reversed(TRIALS), 3, "seed")
    assert first == drawn(TRIALS, 20, "seed")[:3]
    assert first != drawn(TRIALS, 3, "another")
    # By sha256sum of "seed", a newline and each name, sorted.
    assert first == ["r3-t3", "r1-t3", "r0-t5"]
    assert drawn(TRIALS, 99, "seed") == drawn(TRIALS, len(TRIALS), "seed")
    assert drawn(TRIALS, 0, "seed") == []


@pytest.mark.parametrize(("wrong", "count"), [(1, 3), (4, 3), (10, 2), (20, 1), (0, 5)])
def test_drawings_find_wrong_trials_as_often_as_the_formula_says(wrong: int, count: int) -> None:
    among = set(TRIALS[:wrong])
    seeds = 2000
    found = sum(not among.isdisjoint(drawn(TRIALS, count, f"{s}")) for s in range(seeds)) / seeds
    expected = chance(len(TRIALS), wrong, count)
    assert abs(found - expected) <= 4 * math.sqrt(expected * (1 - expected) / seeds)


def test_chances_of_the_page() -> None:
    assert chance(20, 20, 1) == 1.0
    assert chance(10, 1, 3) == pytest.approx(0.3)
    assert chance(4, 2, 9) == 1.0


def test_the_seed_is_the_given_one_or_the_signatures_or_new(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    assert seed_for(paths, "mine").text == "mine"
    new = seed_for(paths, None)
    assert new.text != seed_for(paths, None).text
    assert "not signed" in new.origin
    paths.report.mkdir()
    paths.signature.write_text("-----BEGIN\nabc\ndef\n")
    signed = seed_for(paths, None)
    assert signed.origin == "of the run's signature"
    paths.signature.write_text("-----BEGIN\nabcd ef\n\n")
    assert seed_for(paths, None) == signed, "white space changes no signature"
    paths.signature.write_text("-----BEGIN\nabc\ndeg\n")
    assert seed_for(paths, None).text != signed.text
    paths.signature.unlink()
    paths.signature.symlink_to("/dev/zero")
    assert "a link" in seed_for(paths, None).origin
