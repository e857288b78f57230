import pytest

from aiperf_hpc import formatting


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 OPS"),
        (-0.0, "0 OPS"),
        (0.25, "0.250 OPS"),
        (7.0, "7.00 OPS"),
        (999.4, "999 OPS"),
        (999.6, "1.00 kOPS"),
        (12_345.0, "12.3 kOPS"),
        (1.23e12, "1.23 TOPS"),
        (123.4e15, "123 POPS"),
        (9.996e17, "1.00 EOPS"),
        (2.5e27, "2,500 YOPS"),
    ],
)
def test_si(value: float, text: str) -> None:
    assert formatting.si(value, "OPS") == text


def test_a_number_without_a_unit_keeps_its_prefix() -> None:
    assert formatting.si(165e9, "") == "165 G"
    assert formatting.si(12, "") == "12.0"


@pytest.mark.parametrize(
    ("value", "text"),
    [(1_234_567_890_123.4, "1,234,567,890,123.4"), (12.5, "12.5"), (0.0, "0"), (-0.0, "0")],
)
def test_exact(value: float, text: str) -> None:
    assert formatting.exact(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 00 s"),
        (3599.7, "1 h 00 min 00 s"),
        (7385.0, "2 h 03 min 05 s"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert formatting.duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (65.0, "65 s"),
        (120.0, "2 min"),
        (5_400.0, "90 min"),
        (7_200.0, "2 h"),
        (172_800.0, "2 days"),
        (28_065_746.0, "325 days"),
    ],
)
def test_age(seconds: float, text: str) -> None:
    assert formatting.age(seconds) == text


def test_percent() -> None:
    assert formatting.percent(0.12345) == "12.35%"
    assert formatting.percent(0.5, 1) == "50.0%"
    assert formatting.percent(None) == "–"


def test_size() -> None:
    assert formatting.size(512) == "512 B"
    assert formatting.size(8 * 2**30) == "8.0 GiB"
    assert formatting.size(2**70) == "1048576.0 PiB"


def test_time_in_utc() -> None:
    assert formatting.utc_text(0.0) == "1970-01-01T00:00:00.000Z"
    assert formatting.utc_text(None) is None


def test_ranges() -> None:
    assert formatting.ranges([]) == ""
    assert formatting.ranges([3, 0, 1, 2, 8]) == "0-3, 8"
    assert formatting.ranges([5, 7, 8]) == "5, 7-8"


@pytest.mark.parametrize(
    ("morphisms", "text"),
    [
        ([], ""),
        ([{"kind": "deeper", "after": "a", "kernel": 3}], "3×3 convolution behind a"),
        ([{"kind": "wider", "producer": "a", "channels": 80}], "a widened to 80 channels"),
        ([{"kind": "skip", "source": "a", "target": "b"}], "skip from a to b"),
        ([{"kind": "kernel", "conv": "a", "kernel": 5}], "kernel of a grown to 5×5"),
        (
            [
                {"kind": "skip", "source": "a", "target": "b"},
                {"kind": "kernel", "conv": "c", "kernel": 5},
                {"kind": "kernel", "conv": "d", "kernel": 5},
            ],
            "skip from a to b; kernels of 2 convolutions grown to 5×5",
        ),
        ([{"kind": "turned", "by": 90}], "kind turned, by 90"),
        ([{"kind": "deeper"}], "kind deeper"),
    ],
)
def test_morphisms_in_words(morphisms: list[dict[str, object]], text: str) -> None:
    assert formatting.in_words(morphisms) == text
