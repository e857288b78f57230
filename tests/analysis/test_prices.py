"""Price tables: the documented example, what fits, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.support.present import present

from aiperf_hpc.analysis.options import qualities, target
from aiperf_hpc.analysis.prices import PriceTable, load_prices
from aiperf_hpc.errors import UsageError

DOCUMENT = Path(__file__).parents[2] / "docs" / "prices.md"
HEAD = "currency: USD\ndate: 2026-11-01\nsource: here\n"


def load(folder: Path, text: str) -> PriceTable:
    path = folder / "prices.yaml"
    path.write_text(text)
    return load_prices(path)


def refused(folder: Path, text: str) -> str:
    with pytest.raises(UsageError) as caught:
        load(folder, text)
    said = str(caught.value)
    assert said.startswith(f"--prices {folder / 'prices.yaml'}: ")
    assert "\n" not in said
    assert len(said) < 500
    return said


def test_the_documented_example(tmp_path: Path) -> None:
    example = present(re.search(r"```yaml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL))
    table = load(tmp_path, example[1])
    assert (table.currency, table.date.isoformat()) == ("USD", "2026-11-01")
    found = table.price_of(("8 * V100 (AWS p3.16xlarge)", "x"), "V100", 8)
    assert present(found).per_hour == 24.48
    counted = table.price_of(("another", "x"), "NVIDIA Tesla V100", 8)
    assert counted == (8 * 3.06, "price table, 8 × V100")


def test_the_most_specific_name_applies(tmp_path: Path) -> None:
    table = load(tmp_path, HEAD + "accelerators: {A100: 1, A100-SXM4-80GB: 3, NVIDIA A100: 2}")
    for model, price in (
        ("NVIDIA A100-SXM4-80GB", 3.0),
        ("nvidia a100 PCIe", 2.0),
        ("A100", 1.0),
        ("A1000", None),
        ("H100", None),
    ):
        found = table.price_of(("x",), model, 1)
        assert (found.per_hour if found else None) == price, model


def test_names_match_by_their_words(tmp_path: Path) -> None:
    table = load(tmp_path, HEAD + "systems: {'Juwels  Booster-N16': 5}\naccelerators: {A100: 1}")
    assert present(table.price_of(("x", "juwels_booster n16"), None, None)).per_hour == 5.0
    # Without a number of accelerators, or a model, there is no price.
    assert table.price_of(("x",), "A100", None) is table.price_of(("x",), None, 4) is None


@pytest.mark.parametrize("price", ["0", "-1", ".nan", ".inf", "true", "'3'", "null", "[1]"])
def test_an_invalid_price_is_rejected(tmp_path: Path, price: str) -> None:
    said = refused(tmp_path, f"{HEAD}systems:\n  a machine: {price}\n")
    assert "systems.a machine" in said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("#" * (2 * 1024 * 1024), "larger than"),
        ("- 1", "not a mapping"),
        ("date: 2026-11-01\nsource: here\n", "currency: is missing"),
        (HEAD.replace("USD", "dollars"), "currency: should be an ISO 4217 currency code"),
        (HEAD.replace("2026-11-01", "soon"), "date: "),
        (HEAD + "systems: {V100: 1, v-100: 2, 'V 100': 3}\n", "'v 100' occurs 2 times"),
        (HEAD + "systems: {'-': 1}\n", "an empty name"),
        (HEAD + "price: 3\n", "price: is not known"),
    ],
)
def test_an_invalid_price_table_is_rejected(tmp_path: Path, text: str, words: str) -> None:
    assert words in refused(tmp_path, text)


def test_qualities_of_one_or_of_a_named_benchmark() -> None:
    plain = qualities("--thresholds", "93,94.5,95")
    assert (plain.benchmark, plain.values) == (None, (93.0, 94.5, 95.0))
    named = qualities("--thresholds", "CIFAR10=93")
    assert (named.benchmark, named.values) == ("CIFAR10", (93.0,))


@pytest.mark.parametrize("text", ["", "a", "1,", "nan", "1,inf", "=1", " =1", "CIFAR10=", "1;2"])
def test_an_invalid_quality_is_rejected(text: str) -> None:
    with pytest.raises(UsageError, match="write it as"):
        qualities("--thresholds", text)


def test_a_target_is_one_quality() -> None:
    assert target("CIFAR10=94").values == (94.0,)
    with pytest.raises(UsageError, match="one target"):
        target("93,94")
