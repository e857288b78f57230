"""Generic resources of SLURM's nodes, as it writes them: gpu:h100:4(S:0-1),ssd:1."""

from __future__ import annotations

import re

ACCELERATORS = ("gpu", "npu", "dcu", "mlu")
"""What sites call their accelerators. Others, as ``shard`` and ``mps``, are parts of one."""


def offers(gres: str, asked: str) -> bool:
    """Return whether a node with ``gres`` has what is ``asked``, e.g. gpu:8 or gpu:h100:8."""
    there = [_generic(entry) for entry in _entries(gres)]
    for name, kind, count in (_generic(entry) for entry in _entries(asked)):
        fitting = (n for other, k, n in there if other == name and kind in ("", k))
        if sum(fitting) < count:
            return False
    return True


def equal(one: str, other: str) -> bool:
    """Return whether both ask for the same."""
    return sorted(map(_generic, _entries(one))) == sorted(map(_generic, _entries(other)))


def accelerators_in(gres: str) -> int:
    """Return how many accelerators a node with ``gres`` has."""
    entries = (_generic(entry) for entry in _entries(gres))
    return sum(count for name, _, count in entries if name in ACCELERATORS)


def accelerator_name(gres: str) -> str:
    """Return what SLURM calls the accelerators of ``gres``; "gpu" where it has none."""
    names = (_generic(entry)[0] for entry in _entries(gres))
    return next((name for name in names if name in ACCELERATORS), ACCELERATORS[0])


def _entries(gres: str) -> list[str]:
    """Split at commas, without the sockets that SLURM adds in parentheses."""
    plain = ""
    depth = 0
    for character in gres:
        depth += (character == "(") - (character == ")")
        plain += character if depth == 0 and character != ")" else ""
    return [entry for entry in plain.split(",") if entry]


def _generic(entry: str) -> tuple[str, str, int]:
    """Return name, type ("" for any) and count."""
    name, *rest = re.sub("^gres[:/]", "", entry).split(":")
    count = 1
    if rest and rest[-1].rstrip("KMG").isdigit():
        digits = rest.pop()
        factor = {"K": 2**10, "M": 2**20, "G": 2**30}.get(digits[-1], 1)
        count = int(digits.rstrip("KMG")) * factor
    return name, rest[0] if rest else "", count
