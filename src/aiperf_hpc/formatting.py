"""Human-readable numbers, times and morphisms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

from aiperf_hpc.objective import QUALITY_METRICS
from aiperf_hpc.trial import MorphismData

NAMED = 3
PREFIXES = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")

_PHRASES = {
    "deeper": "{kernel}×{kernel} convolution after {after}",
    "wider": "{producer} widened to {channels} channels",
    "skip": "skip from {source} to {target}",
    "kernel": "kernel of {conv} grown to {kernel}×{kernel}",
}


def scale_of(value: float) -> tuple[float, str]:
    """Return the factor and the SI prefix that suit ``value`` best: (1e12, "T")."""
    for power, prefix in enumerate(PREFIXES):
        if abs(value) < 999.5 * 1000.0**power:
            return 1000.0**power, prefix
    return 1000.0 ** (len(PREFIXES) - 1), PREFIXES[-1]


def si(value: float, unit: str) -> str:
    """Return a number with three digits and an SI unit: ``1.23 TOPS`` for 1.23e12."""
    if value == 0.0:
        return f"0 {unit}".rstrip()
    factor, prefix = scale_of(value)
    scaled = value / factor
    digits = f"{scaled:#.3g}".rstrip(".") if abs(scaled) < 999.5 else f"{scaled:,.0f}"
    return f"{digits} {prefix}{unit}".rstrip()


def exact(value: float) -> str:
    """Return a number in full, large ones with one decimal: ``1,234,567,890,123.4``."""
    value += 0.0  # Turns -0.0 into 0.0.
    return f"{value:,.1f}" if abs(value) >= 1000.0 else f"{value:.6g}"


def percent(share: float | None, digits: int = 2) -> str:
    """Return a fraction as a percentage, or a dash for None."""
    return "–" if share is None else f"{100.0 * share:.{digits}f}%"


def distinct(value: float, limit: float, digits: int, form: str) -> str:
    """Return a value with ``digits`` digits, or with as many as distinguish it from a limit.

    ``form`` is the type of a format specification, such as ``g`` or ``%``.
    """
    texts = ((f"{value:.{n}{form}}", f"{limit:.{n}{form}}") for n in range(digits, 18))
    return next(text for text, other in texts if text != other or value == limit)


def quality(value: float | None, metric: str) -> str:
    """Return a quality in its metric's format: fractions as a percentage, a dash for None."""
    if value is None or QUALITY_METRICS[metric].error is not None:
        return percent(value)
    return f"{value:.4g}"


def duration(seconds: float) -> str:
    """Return seconds as ``4.2 s``, ``3 min 05 s`` or ``2 h 03 min 05 s``."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min {rest:02d} s" if hours else f"{minutes} min {rest:02d} s"


def roughly(seconds: float) -> str:
    """Return a remaining time, rounded to seconds or minutes: ``2 h 05 min``."""
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"


def age(seconds: float) -> str:
    """Return an approximate age: ``65 s``, ``5 min``, ``3 h`` or ``12 days``."""
    for unit, length, below in (("s", 1, 120), ("min", 60, 7_200), ("h", 3_600, 172_800)):
        if seconds < below:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86_400:.0f} days"


def size(count: float) -> str:
    """Return bytes in binary units with up to four digits: ``12 GiB``."""
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while value >= 1023.5 and len(units) > 1:
        value = max(value / 1024.0, 1.0)
        units.pop(0)
    return f"{value:{'.4g' if value < 1000.0 else '.0f'}} {units[0]}"


def utc_text(utc: float | None) -> str | None:
    """Return UTC seconds in ISO 8601 with milliseconds: ``2026-01-01T00:00:00.000Z``."""
    if utc is None:
        return None
    return datetime.fromtimestamp(utc, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def ranges(numbers: Sequence[int]) -> str:
    """Return whole numbers as ranges: ``0-3, 8``."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ", ".join("-".join(str(n) for n in part) for part in parts)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 host``, ``1,024 hosts``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def few(names: Sequence[str], most: int = NAMED) -> str:
    """Return the first names and the number of others: ``r0, r1, r2 and 5 more``."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def in_words(morphisms: Sequence[MorphismData]) -> str:
    """Return a description of the morphisms from parent to child; empty for an initial graph.

    Kernels that grow to the same size, as in hyperparameter optimization, share one phrase.
    """
    sizes = Counter(str(m.get("kernel")) for m in morphisms if m.get("kind") == "kernel")
    phrases: dict[str, None] = {}
    for morphism in morphisms:
        size = str(morphism.get("kernel"))
        if morphism.get("kind") == "kernel" and sizes[size] > 1:
            phrases[f"kernels of {sizes[size]} convolutions grown to {size}×{size}"] = None
        else:
            phrases[_phrase(morphism)] = None
    return "; ".join(phrases)


def _phrase(morphism: MorphismData) -> str:
    try:
        return _PHRASES[str(morphism.get("kind"))].format_map(morphism)
    except (KeyError, ValueError, IndexError):
        # A morphism of a later version is shown as recorded.
        return ", ".join(f"{key} {value}" for key, value in morphism.items())
