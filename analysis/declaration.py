"""Declaration of an entry's changes to a benchmark, per layer, checked by the rules of its level.

HPC AI500 V2.0 (Jiang et al. 2020, arXiv:2007.00279) divides an HPC AI system into nine layers and
compares systems at three levels, each of which permits changes to certain layers.
docs/decisions/valid_flops.md explains this reading of the rules.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from pydantic import Field, field_validator, model_validator

from aiperf_hpc.errors import restated
from aiperf_hpc.trial import Value
from aiperf_hpc.untrusted.files import yaml_model

Level = Literal["hardware", "system", "free"]
LayerName = Literal[
    "hardware",
    "operating_system",
    "communication_libraries",
    "accelerator_libraries",
    "framework",
    "programming_model",
    "implementation",
    "hyperparameters",
    "problem_domain",
]
MOST_BYTES = 1024 * 1024
LAYERS: tuple[LayerName, ...] = get_args(LayerName)
"""Layers from 1, the machine, to 9, which is common to all entries."""

Parts = frozenset[str] | None
"""Parts of a layer that may be changed; None for the whole layer."""

_HARDWARE: dict[LayerName, Parts] = {
    "hardware": None,
    "operating_system": None,
    "communication_libraries": None,
    "accelerator_libraries": None,
    "programming_model": frozenset({"parallel mode"}),
    "hyperparameters": frozenset({"batch size", "learning rate policy"}),
}
OPEN: dict[Level, dict[LayerName, Parts]] = {
    "hardware": _HARDWARE,
    "system": {**_HARDWARE, "framework": None, "programming_model": None, "implementation": None},
    "free": dict.fromkeys(LAYERS[:-1]),
}
"""Layers that each level permits to change. The others must match the benchmark."""


class Layer(Value):
    """Changes to one layer, if any."""

    changed: bool
    description: str | None = Field(None, min_length=1)
    """Description of the change; required for a changed layer, absent otherwise."""
    parts: tuple[str, ...] = ()
    """Changed parts of the layer, if the level permits only some."""

    @model_validator(mode="after")
    def _consistent(self) -> Layer:
        if self.changed and self.description is None:
            raise ValueError("describe the change in `description`")
        if not self.changed and (self.description or self.parts):
            raise ValueError("it is not changed, yet `description` or `parts` describe a change")
        return self


class Declaration(Value):
    """Changes of an entry per layer, and the level that it claims."""

    level: Level
    entry: str | None = None
    """Name of the declared entry; None for all analyzed entries."""
    layers: dict[LayerName, Layer]

    @field_validator("layers")
    @classmethod
    def _complete(cls, layers: dict[LayerName, Layer]) -> dict[LayerName, Layer]:
        missing = [name for name in LAYERS if name not in layers]
        if missing:
            raise ValueError(f"all nine layers are declared; missing: {', '.join(missing)}")
        return {name: layers[name] for name in LAYERS}

    @model_validator(mode="after")
    def _allowed(self) -> Declaration:
        for name, layer in self.layers.items():
            if layer.changed:
                _check(self.level, name, layer)
        return self


def read_declaration(path: Path) -> Declaration:
    """Read a declaration from YAML.

    Raises:
        UsageError: the file cannot be read, is incomplete, or violates the rules of its level.
    """
    with restated(f"cannot read the declaration {path}"):
        return yaml_model(path, Declaration, MOST_BYTES)


def _check(level: Level, name: LayerName, layer: Layer) -> None:
    """Raise ValueError if the level does not permit a change."""
    number = LAYERS.index(name) + 1
    if name not in OPEN[level]:
        allowed = next((other for other in get_args(Level) if name in OPEN[other]), None)
        remedy = f"; that is the {allowed} level" if allowed else ", nor does any other"
        raise ValueError(f"the {level} level does not let layer {number}, {name}, change{remedy}")
    parts = OPEN[level][name]
    if parts is None:
        return
    if not layer.parts or not parts.issuperset(layer.parts):
        raise ValueError(
            f"the {level} level lets only {' and '.join(sorted(parts))} of layer {number}, {name}, "
            f"change; `parts` has {', '.join(layer.parts) or 'nothing'}"
        )
