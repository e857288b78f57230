"""Declarations of what was changed: HPC AI500's levels over its nine layers."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from aiperf_hpc.analysis.declaration import LAYERS, Declaration, read_declaration
from aiperf_hpc.errors import UsageError

EXAMPLE = Path(__file__).parents[2] / "docs" / "vflops_declaration.yaml"
OF_THE_MACHINE = LAYERS[:4]
UNCHANGED = {name: {"changed": False} for name in LAYERS}


def written(folder: Path, level: str, **changed: object) -> Path:
    file = folder / "declaration.yaml"
    file.write_text(yaml.safe_dump({"level": level, "layers": UNCHANGED | changed}), "utf-8")
    return file


def changed(path: Path) -> tuple[str, ...]:
    """Return the layers that a declaration states as changed, from the lowest."""
    layers = read_declaration(path).layers
    return tuple(name for name, layer in layers.items() if layer.changed)


def refusal(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        read_declaration(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return str(caught.value)


def change(*parts: str) -> dict[str, object]:
    return {"changed": True, "description": "something else", "parts": list(parts)}


def test_the_example_of_the_documentation_is_valid() -> None:
    declaration = read_declaration(EXAMPLE)
    assert declaration.level == "hardware"
    assert declaration.entry is None
    assert changed(EXAMPLE) == (
        *OF_THE_MACHINE, "programming_model", "hyperparameters",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("level", "layers"),
    [
        ("hardware", OF_THE_MACHINE),
        ("system", (*OF_THE_MACHINE, "framework", "programming_model", "implementation")),
        ("free", LAYERS[:-1]),
    ],
)
def test_layers_that_each_level_permits_to_change(
    tmp_path: Path, level: str, layers: Sequence[str]
) -> None:
    allowed: list[str] = []
    for name in LAYERS:
        with contextlib.suppress(UsageError):
            allowed += changed(written(tmp_path, level, **{name: change()}))
    assert allowed == list(layers)
    said = refusal(written(tmp_path, level, problem_domain=change()))
    assert "layer 9, problem_domain, change, nor does any other" in said
    if level == "hardware":
        said = refusal(written(tmp_path, level, framework=change()))
        assert said.endswith(
            "the hardware level does not let layer 5, framework, change; that is the system level"
        )


@pytest.mark.parametrize("level", ["hardware", "system"])
def test_only_batch_size_and_learning_rate_policy_may_change(tmp_path: Path, level: str) -> None:
    assert changed(written(tmp_path, level, hyperparameters=change("batch size")))
    said = refusal(written(tmp_path, level, hyperparameters=change("batch size", "optimizer")))
    assert "only batch size and learning rate policy of layer 8" in said
    assert "`parts` has batch size, optimizer" in said
    assert "`parts` has nothing" in refusal(written(tmp_path, level, hyperparameters=change()))


def test_a_missing_layer_is_named(tmp_path: Path) -> None:
    file = tmp_path / "declaration.yaml"
    layers: dict[str, Any] = {k: v for k, v in UNCHANGED.items() if k not in LAYERS[3:5]}
    file.write_text(yaml.safe_dump({"level": "free", "layers": layers}), "utf-8")
    assert "missing: accelerator_libraries, framework" in refusal(file)


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        ({"changed": True}, "layers.framework: describe the change in `description`"),
        ({"changed": False, "description": "JAX"}, "layers.framework: it is not changed, yet"),
        ({"changed": False, "parts": ["batch size"]}, "layers.framework: it is not changed, yet"),
        ({}, "layers.framework.changed: is missing"),
        ({"changed": True, "description": ""}, "layers.framework.description: "),
        ({"changed": False, "why": "so"}, "layers.framework.why: "),
        (None, "layers.framework: "),
    ],
)
def test_an_inconsistent_layer_is_rejected(tmp_path: Path, layer: object, said: str) -> None:
    assert said in refusal(written(tmp_path, "free", framework=layer))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"[1, 2]", "not a mapping"),
        (b"level: middle\nlayers: {}\n", "level: should be 'hardware', 'system' or 'free'"),
        (b"level: free\nlayers: {wheels: {changed: false}}\n", "layers.wheels"),
        (b"#" * (1024 * 1024 + 1), "larger than 1,048,576 bytes"),
    ],
)
def test_an_invalid_declaration_is_rejected_in_one_line(
    tmp_path: Path, text: bytes, said: str
) -> None:
    file = tmp_path / "declaration.yaml"
    file.write_bytes(text)
    assert said in refusal(file)


def test_layers_are_in_the_order_of_the_system(tmp_path: Path) -> None:
    values = {"level": "free", "layers": dict(reversed(UNCHANGED.items()))}
    assert tuple(Declaration.model_validate(values).layers) == LAYERS
