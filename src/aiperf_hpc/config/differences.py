"""What a configuration changes of the preset that it is made from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from aiperf_hpc.config.loading import load_config, preset_names
from aiperf_hpc.config.run import RunConfig

OFFICIAL = "imagenet"
"""The preset that a configuration of no preset of this version is compared with."""


class Difference(NamedTuple):
    """A key with another value than in the preset."""

    key: str
    """Dotted, as for ``--set``."""
    value: Any
    """Plain data; None also where the configuration has no such key."""
    preset: Any
    """The preset's; None also where it has no such key."""


def preset_of(config: RunConfig) -> str:
    """Return the preset that a configuration is compared with: its own, or the official one."""
    return config.preset if config.preset in preset_names() else OFFICIAL


def differences(config: RunConfig) -> list[Difference]:
    """Return where a configuration differs from ``preset_of`` it, in the order of its keys."""
    base = load_config(preset_of(config)).settled().model_dump(mode="json")
    return list(_differences(config.settled().model_dump(mode="json"), base))


def _differences(
    one: Mapping[str, Any], other: Mapping[str, Any], above: str = ""
) -> Iterator[Difference]:
    for key in dict.fromkeys((*one, *other)):
        mine, theirs = one.get(key), other.get(key)
        if isinstance(mine, dict) and isinstance(theirs, dict):
            yield from _differences(mine, theirs, f"{above}{key}.")
        elif mine != theirs:
            yield Difference(f"{above}{key}", mine, theirs)
