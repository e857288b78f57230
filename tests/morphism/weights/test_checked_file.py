"""No damage of a checkpoint goes unnoticed, and each is named."""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save
from tests.support.networks import residual
from tests.support.weight_files import with_header

from aiperf_hpc.errors import CheckpointError
from aiperf_hpc.graph import Conv2D, Graph, Input, Node
from aiperf_hpc.morphism.weights.weight_file import (
    Weights,
    initial_weights,
    load_checkpoint,
    save_checkpoint,
    stored_shapes,
)
from aiperf_hpc.replica.training.checkpoint import load_training, save_training
from aiperf_hpc.replica.training.trial import TrainingState, TrialProgress

T = TypeVar("T")

GRAPH = Graph((Node("image", Input((2, 2, 1))), Node("conv", Conv2D(1, 3), ("image",))))
WEIGHTS = initial_weights(GRAPH, np.random.default_rng(0))
MOMENTA = initial_weights(GRAPH, np.random.default_rng(1))
STATE = {f"momentum:{name}": array for name, array in MOMENTA.items()}
COURSE = TrialProgress(trial="r0-t1").after(0.5, 1.25)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoint") / "under-way.safetensors"
    save_training(path, TrainingState(COURSE, GRAPH, WEIGHTS, STATE))
    return path


def _is_as_stored(found: TrainingState) -> bool:
    return (
        (found.progress, found.graph) == (COURSE, GRAPH)
        and _equal(found.weights, WEIGHTS)
        and _equal(found.optimizer_state, STATE)
    )


def _equal(one: Weights, other: Weights) -> bool:
    return one.keys() == other.keys() and all(
        array.tobytes() == other[name].tobytes() and array.shape == other[name].shape
        for name, array in one.items()
    )


def _check_damaged(path: Path, content: bytes) -> None:
    """Require that a damaged file is refused in one line, or gives what was stored."""

    def retry(action: Callable[[], T], what: str, verb: str = "write") -> T:
        return cast(T, content)  # As read from ``path``: a disk would be slow for so many.

    try:
        found = load_training(path, retry)
    except CheckpointError as error:
        text = str(error)
        assert text.startswith(f"the checkpoint {path} is damaged: ")
        assert text.isprintable()
    else:
        assert _is_as_stored(found)


def test_no_flipped_bit_goes_unnoticed(stored: Path) -> None:
    content = stored.read_bytes()
    for place, bit in itertools.product(range(len(content)), range(8)):
        flipped = content[place] ^ 1 << bit
        _check_damaged(stored, content[:place] + bytes([flipped]) + content[place + 1 :])


@given(place=st.integers(0, 10_000), byte=st.integers(0, 255), more=st.integers(0, 3))
@settings(max_examples=150)
def test_no_other_bytes_go_unnoticed(stored: Path, place: int, byte: int, more: int) -> None:
    content = bytearray(stored.read_bytes())
    for number in range(more + 1):
        content[(place + number) % len(content)] = byte
    _check_damaged(stored, bytes(content))


@given(end=st.integers(0, 10_000))
@settings(max_examples=50)
def test_no_cut_goes_unnoticed(stored: Path, end: int) -> None:
    content, damaged = stored.read_bytes(), stored.with_name("cut")
    damaged.write_bytes(content[: end % len(content)])
    with pytest.raises(CheckpointError, match="is damaged"):
        load_training(damaged)


def test_the_damaged_tensor_is_named(tmp_path: Path) -> None:
    path = tmp_path / "c"
    save_checkpoint(path, GRAPH, WEIGHTS)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(
        CheckpointError,
        match=rf"{path} is damaged: its tensor conv/kernel: the checksum is \w+, it was stored",
    ):
        load_checkpoint(path)


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [(b'stride\\\\\\": 1', b'stride\\\\\\": 2', "text graph"), (b"[0.5]", b"[0.9]", "text course")],
)
def test_a_text_that_was_changed_is_named(
    stored: Path, tmp_path: Path, before: bytes, after: bytes, what: str
) -> None:
    """The weights fit either graph, and either course is one."""
    content = stored.read_bytes()
    assert before in content
    (tmp_path / "c").write_bytes(content.replace(before, after))
    with pytest.raises(CheckpointError, match=f"its {what}: the checksum is"):
        load_training(tmp_path / "c")


def test_checksums_are_those_of_the_standard(tmp_path: Path) -> None:
    """CRC32C as in RFC 3720, B.4: 32 zero bytes have the checksum 8a9136aa."""
    import google_crc32c

    assert google_crc32c.value(bytes(32)) == 0x8A9136AA
    save_checkpoint(tmp_path / "c", GRAPH, WEIGHTS)
    content = (tmp_path / "c").read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    (contents,) = json.loads(content[8 : 8 + length])["__metadata__"].values()
    checksums, texts = (json.loads(contents)[key] for key in ("checksums", "texts"))
    kernel = b"float32 (3, 3, 1, 1)" + WEIGHTS["conv/kernel"].tobytes()
    assert checksums == {
        "text graph": f"{google_crc32c.value(texts['graph'].encode()):08x}",
        "tensor conv/kernel": f"{google_crc32c.value(kernel):08x}",
    }


def test_a_file_without_checksums_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(save(dict(WEIGHTS), {"graph": GRAPH.to_json()}))
    with pytest.raises(CheckpointError, match="its header is not that of a checkpoint"):
        load_checkpoint(other)


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "folder").mkdir()
    for name, what in {
        "empty": "is damaged: it has 0 bytes",
        "folder": "Is a directory",
        "gone": "No such file",
    }.items():
        with pytest.raises(CheckpointError, match=what) as raised:
            load_training(tmp_path / name)
        assert str(tmp_path / name) in str(raised.value)


@pytest.mark.parametrize(
    ("shape", "end"),
    [
        *((shape, 0) for shape in ([[1]], ["x"], [-1], [True], [1.0], None, 4)),
        *(([2], end) for end in (0.0, False, None, "0", -1)),
    ],
)
def test_shapes_and_offsets_are_natural_numbers(tmp_path: Path, shape: object, end: object) -> None:
    header = {"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, end]}}
    (tmp_path / "c").write_bytes(with_header(header))
    with pytest.raises(CheckpointError, match="c is damaged: "):
        stored_shapes(tmp_path / "c")


@pytest.mark.parametrize("changed", [{"shape": [3]}, {"dtype": "F64"}, {"data_offsets": [4, 8]}])
def test_a_shape_that_its_bytes_do_not_have_is_damage(
    tmp_path: Path, changed: dict[str, object]
) -> None:
    one = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    (tmp_path / "c").write_bytes(with_header({"a": one}) + bytes(8))
    assert stored_shapes(tmp_path / "c") == {"a": (2,)}
    (tmp_path / "c").write_bytes(with_header({"a": one | changed}) + bytes(8))
    with pytest.raises(CheckpointError, match="the type and shape of a do not match its"):
        stored_shapes(tmp_path / "c")


def test_an_array_of_many_axes_is_damage(tmp_path: Path) -> None:
    stated = {"dtype": "F32", "shape": [2**62] * 100, "data_offsets": [0, 8]}
    (tmp_path / "c").write_bytes(with_header({"a": stated}))
    with pytest.raises(CheckpointError, match="a has 100 axes"):
        stored_shapes(tmp_path / "c")


def test_a_header_longer_than_the_library_reads_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "c").open("wb") as file:
        file.write(struct.pack("<Q", 2**40))
        file.truncate(2**40)  # Sparse.
    with pytest.raises(CheckpointError, match="its header is longer than 100,000,000 bytes"):
        stored_shapes(tmp_path / "c")


def test_the_same_contents_give_the_same_bytes(tmp_path: Path) -> None:
    """In whatever order: so that a simulated run can be repeated byte for byte."""
    found, graph = set(), residual()
    weights = initial_weights(graph, np.random.default_rng(0))
    for number in range(16):
        names = list(weights)[number:] + list(weights)[:number]
        turned = {name: weights[name] for name in names}
        save_training(tmp_path / "c", TrainingState(COURSE, graph, turned, turned))
        found.add((tmp_path / "c").read_bytes())
    assert len(found) == 1
