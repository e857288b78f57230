from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from aiperf_hpc import formatting


@pytest.mark.parametrize(
    ("function", "arguments", "text"),
    [
        (formatting.si, (0.0, "OPS"), "0 OPS"),
        (formatting.si, (0.25, "OPS"), "0.250 OPS"),
        (formatting.si, (999.6, "OPS"), "1.00 kOPS"),
        (formatting.si, (12_345.0, "OPS"), "12.3 kOPS"),
        (formatting.si, (9.996e17, "OPS"), "1.00 EOPS"),
        (formatting.si, (2.5e27, "OPS"), "2,500 YOPS"),
        (formatting.si, (165e9, ""), "165 G"),
        (formatting.exact, (1_234_567_890_123.4,), "1,234,567,890,123.4"),
        (formatting.exact, (12.5,), "12.5"),
        (formatting.exact, (-0.0,), "0"),
        (formatting.distinct, (1.23456, 1.0, 4, "g"), "1.235"),
        (formatting.distinct, (1.0, 1.0, 4, "g"), "1"),
        (formatting.distinct, (0.99999, 1.0, 4, "g"), "0.99999"),
        (formatting.distinct, (math.nextafter(0.3, 1.0), 0.3, 2, "%"), "30.000000000000004%"),
        (formatting.duration, (59.94,), "59.9 s"),
        (formatting.duration, (59.96,), "1 min 00 s"),
        (formatting.duration, (3599.7,), "1 h 00 min 00 s"),
        (formatting.duration, (7385.0,), "2 h 03 min 05 s"),
        (formatting.age, (65.0,), "65 s"),
        (formatting.age, (120.0,), "2 min"),
        (formatting.age, (7_200.0,), "2 h"),
        (formatting.age, (172_800.0,), "2 days"),
        (formatting.percent, (0.12345,), "12.35%"),
        (formatting.percent, (0.5, 1), "50.0%"),
        (formatting.percent, (None,), "–"),
        (formatting.size, (1_023.6,), "1 KiB"),
        (formatting.size, (int(5.25 * 2**20),), "5.25 MiB"),
        (formatting.size, (2**30 - 1,), "1 GiB"),
        (formatting.size, (2**70,), "1048576 PiB"),
        (formatting.utc_text, (0.0,), "1970-01-01T00:00:00.000Z"),
        (formatting.ranges, ([3, 0, 1, 2, 8],), "0-3, 8"),
    ],
)
def test_numbers_times_and_sizes(
    function: Callable[..., str | None], arguments: tuple[object, ...], text: str | None
) -> None:
    assert function(*arguments) == text


@pytest.mark.parametrize(
    ("morphisms", "text"),
    [
        ([{"kind": "deeper", "after": "a", "kernel": 3}], "3×3 convolution after a"),
        ([{"kind": "wider", "producer": "a", "channels": 80}], "a widened to 80 channels"),
        ([{"kind": "kernel", "conv": "a", "kernel": 5}], "kernel of a grown to 5×5"),
        (
            [
                {"kind": "skip", "source": "a", "target": "b"},
                {"kind": "kernel", "conv": "c", "kernel": 5},
                {"kind": "kernel", "conv": "d", "kernel": 5},
            ],
            "skip from a to b; kernels of 2 convolutions grown to 5×5",
        ),
        ([{"kind": "deeper"}], "kind deeper"),
    ],
)
def test_morphisms_in_words(morphisms: list[dict[str, object]], text: str) -> None:
    assert formatting.in_words(morphisms) == text
