"""Tests of the weather out of formulas: what is planted, where it is marked, what fields are."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.generated import generated

from aiperf_hpc.errors import DatasetError
from aiperf_hpc.replica.data.base import Batch
from aiperf_hpc.replica.data.weather import datasets
from aiperf_hpc.replica.data.weather.fields import CHANNELS, make_fields
from aiperf_hpc.replica.data.weather.phenomena import (
    AROUND,
    Cyclone,
    Kind,
    Map,
    Range,
    River,
    draw,
)

HEIGHT = 48


@pytest.fixture(scope="module")
def masked() -> Batch:
    return next(generated("weather_masks", HEIGHT, train=80).train(1, 80, 0))


@pytest.fixture(scope="module")
def boxed() -> Batch:
    return next(generated("weather_boxes", HEIGHT).train(1, 40, 0))


def test_fields_lie_between_their_bounds(boxed: Batch) -> None:
    """All but some of the highest and lowest values, and none far beyond."""
    fields = boxed.inputs["image"]
    inside = ((fields >= 0.0) & (fields <= 1.0)).mean((0, 1, 2))
    assert inside.min() > 0.97
    assert np.abs(fields - 0.5).max() < 1.5
    assert fields.std((0, 1, 2)).min() > 0.03


def test_all_background_is_worth_what_was_measured_of_it(masked: Batch) -> None:
    """As DeepCAM measures: a class that a sample has not counts as found."""
    mask = masked.targets["mask"]
    shares = np.bincount(mask.ravel(), minlength=3) / mask.size
    assert shares == pytest.approx([0.977, 0.008, 0.015], abs=0.01)
    background = (mask == 0).mean((1, 2))
    absent = [(mask != number).all((1, 2)) for number in (1, 2)]
    assert not absent[0].any()
    assert ((background + sum(absent)) / 3).mean() == pytest.approx(0.41, abs=0.06)


def test_boxes_lie_in_the_map_about_all_classes(boxed: Batch) -> None:
    rows = boxed.targets["boxes"].reshape(-1, 5)
    there = rows[rows[:, 4] >= 0]
    assert (rows[rows[:, 4] < 0] == -1).all()
    top, left, bottom, right, number = there.T
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top < bottom).all()
    assert (left < right).all()
    assert bottom.max() <= HEIGHT
    assert right.max() <= HEIGHT * 3 // 2
    by_class = np.bincount(number, minlength=4) / 40
    assert by_class == pytest.approx([1.0, 2.5, 1.0, 1.0], abs=0.5)


@pytest.mark.parametrize(
    ("kind", "latitudes", "radii", "depths"),
    [
        (Kind.CYCLONE, (15.0, 40.0), (2.2, 4.3), (30.0, 70.0)),
        (Kind.DEPRESSION, (15.0, 40.0), (2.2, 4.3), (10.0, 20.0)),
        (Kind.EXTRATROPICAL, (45.0, 65.0), (6.6, 12.9), (20.0, 45.0)),
    ],
)
def test_cyclones_have_the_latitudes_radii_and_depths_of_their_kind(
    kind: Kind, latitudes: Range, radii: Range, depths: Range
) -> None:
    drawn = [each for sample in range(300) for each in draw(0, sample, weaker=True)]
    chosen = [each for each in drawn if isinstance(each, Cyclone) and each.kind == kind]
    found = np.array([(abs(each.latitude), each.radius, each.depth) for each in chosen])
    least, most = np.array([latitudes, radii, depths]).T
    assert (found >= least).all()
    assert (found <= most).all()
    np.testing.assert_array_less(found.min(axis=0), least + 0.05 * (most - least))
    np.testing.assert_array_less(most - 0.05 * (most - least), found.max(axis=0))


def test_a_cyclone_is_a_low_with_wind_around_it() -> None:
    cells = Map.of(96)
    cyclone = Cyclone(Kind.CYCLONE, latitude=20.0, along=135.0, radius=4.0, depth=50.0)
    added, mask = cyclone.plant(cells)
    row, column = np.unravel_index(added["PSL"].argmin(), mask.shape)
    assert added["PSL"].min() == pytest.approx(-5_000.0, rel=0.01)
    assert (cells.latitude[row, 0], cells.along[0, column]) == pytest.approx((20, 135), abs=2)
    speed = np.hypot(added["U850"], added["V850"])
    assert speed.max() == pytest.approx(4.5 * 50**0.5, rel=0.03)
    assert added["V850"][row, column + 3] > 0 > added["V850"][row, column - 3]  # To the left.
    south = Cyclone(Kind.CYCLONE, latitude=-20.0, along=135.0, radius=4.0, depth=50.0)
    assert south.plant(cells)[0]["V850"][95 - row, column + 3] < 0
    assert mask.sum() * (180 / 96) ** 2 == pytest.approx(np.pi * (2.2 * 4.0) ** 2, rel=0.1)
    box = datasets.box(mask, 135.0 / AROUND)
    assert box[2] - box[0] == pytest.approx(2 * 2.2 * 4.0 * 96 / 180, abs=1.5)


def test_what_lies_across_the_seam_has_the_box_of_its_middle() -> None:
    cells = Map.of(96)
    for along, left, right in ((1.0, 0, 6), (268.0, 138, 144)):
        cyclone = Cyclone(Kind.CYCLONE, latitude=20.0, along=along, radius=4.0, depth=50.0)
        _, mask = cyclone.plant(cells)
        assert mask[:, 0].any()
        assert mask[:, -1].any()
        box = datasets.box(mask, along / AROUND)
        assert box[1::2] == pytest.approx((left, right), abs=1)


def test_a_river_is_moist_along_its_way_and_blows_polewards() -> None:
    river = River(latitude=-20.0, along=100.0, end=-50.0, reach=40.0, bend=5.0, width=4.0)
    added, mask = river.plant(Map.of(96))
    assert added["TMQ"][mask].min() > 0.4 * 21
    assert (added["V850"][mask] < 0).all()
    rows = np.flatnonzero(mask.any(1)) * 180 / 96 - 90
    assert rows[[0, -1]] == pytest.approx([-55, -15], abs=3)


def test_masks_have_cyclones_over_rivers() -> None:
    cells = Map.of(24)
    river = River(latitude=20.0, along=100.0, end=50.0, reach=40.0, bend=0.0, width=4.0)
    low = Cyclone(Kind.CYCLONE, latitude=22.0, along=82.0, radius=4.0, depth=50.0)
    planted = (low, river)
    marked = [each.plant(cells)[1] for each in planted]
    assert (marked[0] & marked[1]).any()
    found = datasets.mask(planted, marked)
    assert (found[marked[0]] == 1).all()
    assert (found[marked[1] & ~marked[0]] == 2).all()


def test_weather_is_the_same_whatever_is_planted_and_asked_for() -> None:
    alone, _ = make_fields(("PSL",), HEIGHT, 0, 3, ())
    both, _ = make_fields(("TMQ", "PSL"), HEIGHT, 0, 3, ())
    np.testing.assert_array_equal(alone[..., 0], both[..., 1])
    planted, _ = make_fields(("PSL",), HEIGHT, 0, 3, draw(0, 3, weaker=True))
    assert (planted <= alone + 1e-6).all()
    assert planted.min() < alone.min() - 0.1
    other, _ = make_fields(("PSL",), HEIGHT, 1, 3, ())
    assert np.abs(other - alone).max() > 0.01


def test_backgrounds_have_their_deviation_and_are_smooth() -> None:
    channel = CHANNELS["T500"]
    fields = [make_fields(("T500",), HEIGHT, 0, sample, ())[0][..., 0] for sample in range(24)]
    about = np.stack(fields) * (channel.high - channel.low) + channel.low
    about -= about.mean((0, 2), keepdims=True)
    assert about.std() == pytest.approx(channel.deviation, rel=0.15)
    assert np.diff(about, axis=2).std() < 0.35 * about.std()


def test_odd_rows_are_refused_by_name() -> None:
    with pytest.raises(DatasetError, match="dataset.image_size=25: weather_masks has maps"):
        generated("weather_masks", 25)
