"""Cost to accuracy: published figures, prices of tables, and who is missing and why."""

from __future__ import annotations

import random
from datetime import date
from itertools import pairwise
from pathlib import Path

import pytest
from tests.support.training_logs import ACCURACY, cifar10_entries, entry, training

from aiperf_hpc.analysis.analysis import with_target
from aiperf_hpc.analysis.metric import NotMeasuredError
from aiperf_hpc.analysis.options import Options, target
from aiperf_hpc.analysis.prices import PriceTable
from aiperf_hpc.analysis.sections.cost import (
    Costs,
    cost_to_accuracy,
    pareto_front,
    price_index,
    tables,
)
from aiperf_hpc.analysis.training_log import Entry, System


def table(currency: str = "USD", **prices: dict[str, float]) -> PriceTable:
    stated = {"currency": currency, "date": date(2026, 11, 1), "source": "here"}
    return PriceTable.model_validate(stated | prices)


def of(*entries: Entry, prices: PriceTable | None = None) -> Costs:
    (found,) = cost_to_accuracy(entries, Options(prices=prices)).contests
    return found


def machine(name: str, seconds: float, price: float | None, **system: object) -> Entry:
    described = System.model_validate({"name": f"m-{name}", "cost_per_hour": price, **system})
    return entry(name, training([(seconds, 0.9)]), system=described)


def test_published_costs_of_cifar10(tmp_path: Path) -> None:
    sections = cost_to_accuracy(cifar10_entries(tmp_path), Options())
    (found,), (table,) = sections.contests, tables(sections)
    costs = {paid.entry.split("/")[1]: paid.cost for paid in found.priced}
    assert f"{costs['davidcpage_resnet9_1v100-ec2_pytorch']:.3f}" == "0.063"
    rows = {name: cells for name, *cells in table.rows}
    assert rows["CIFAR10/fastai_pytorch"][:3] == ["2.90", "1.18", "24.48"]
    assert rows["CIFAR10/fastai_pytorch_single_volta"][:3] == ["6.73", "0.26", "2.3"]
    assert len(costs) == 20
    assert "no price" in found.missing["CIFAR10/apple_resnet9_8v100_pytorch"]
    front = [paid.entry.split("/")[1] for paid in found.priced if paid.on_front]
    assert front == [
        "BAIDU-USA-GAIT_BaiduNet9P_8GV100_pytorch", "BAIDU-USA-GAIT_BaiduNet9_1GV100_pytorch",
    ]  # fmt: skip


def test_index_against_the_cheapest_by_hand() -> None:
    """Half the time at three times the price an hour: 1.5 times the cost, 1.5 / 2."""
    found = of(machine("one", 100.0, 36.0), machine("three", 50.0, 108.0))
    assert found.base == "one"
    assert [(paid.entry, paid.price_index) for paid in found.priced] == [
        ("three", pytest.approx(0.75)), ("one", 1.0),
    ]  # fmt: skip
    assert [paid.on_front for paid in found.priced] == [True, True]


def test_the_price_table_precedes_an_entrys_price() -> None:
    entries = (
        machine("named", 3600.0, 9.0),
        machine("counted", 3600.0, None, accelerator="Tesla V100", accelerators=4),
        machine("own", 3600.0, 7.0),
        machine("none", 3600.0, None),
    )
    found = of(*entries, prices=table(systems={"m named": 5.0}, accelerators={"V100": 1.5}))
    assert {paid.entry: (paid.cost, paid.price_source) for paid in found.priced} == {
        "named": (5.0, "price table, system"),
        "counted": (6.0, "price table, 4 × V100"),
        "own": (7.0, "entry"),
    }
    assert found.missing == {"none": "no price for 'm-none' in the price table"}


def test_dollars_are_not_mixed_with_another_currency() -> None:
    found = of(
        machine("named", 3600.0, 9.0), machine("own", 3600.0, 7.0),
        prices=table("EUR", systems={"m named": 5.0}),
    )  # fmt: skip
    assert found.currency == "EUR"
    assert [paid.entry for paid in found.priced] == ["named"]
    assert "its own price is in USD, the table's in EUR" in found.missing["own"]


def test_an_entry_that_missed_the_target_has_a_reason() -> None:
    short = entry("short", training([(1, 0.8)]), system=System(name="m", cost_per_hour=1.0))
    found = of(short, machine("there", 1.0, 1.0))
    assert found.missing == {"short": "never reached: the best is 0.8"}


def test_without_any_cost_the_error_names_the_option() -> None:
    with pytest.raises(NotMeasuredError, match="give one with --prices"):
        cost_to_accuracy([machine("a", 1.0, None)], Options())
    aimless = ACCURACY.model_copy(update={"target": None})
    lost = entry("lost", training([(1, 0.8)], aimless), system=System(name="m", cost_per_hour=1.0))
    with pytest.raises(NotMeasuredError, match="name one with --target"):
        cost_to_accuracy([lost], Options())
    named = Options(targets=(target("0.8"),))
    found = cost_to_accuracy([with_target(lost, named)], named)
    assert [paid.seconds for paid in found.contests[0].priced] == [1.0]


@pytest.mark.parametrize("zero", range(4))
def test_a_zero_has_no_price_index(zero: int) -> None:
    cost, seconds, base_cost, base_seconds = (float(place != zero) for place in range(4))
    assert price_index(cost, seconds, base_cost, base_seconds) is None


def test_front_is_that_of_the_definition() -> None:
    rng = random.Random(2)  # noqa: S311 -- no secret
    for _ in range(200):
        points = [(float(rng.randint(0, 6)), float(rng.randint(0, 6))) for _ in range(15)]
        beaten = {
            i for i, (x, y) in enumerate(points)
            if any(a <= x and b <= y and (a, b) != (x, y) for a, b in points)
        }  # fmt: skip
        front = pareto_front(points)
        assert set(front) == set(range(15)) - beaten
        assert all(points[a][0] <= points[b][0] for a, b in pairwise(front))
