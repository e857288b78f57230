from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.networks import SMALL, THIN, flat_images, random_chain, residual, volumes

from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.operators.morphisms import grow
from aiperf_hpc.morphism.resnet import resnet50
from aiperf_hpc.morphism.weights.channels import channel_groups


@pytest.mark.parametrize(
    ("members", "producers", "readers"),
    [
        # An addition ties what it adds, through pooling and normalisation.
        ("stem_conv stem_norm stem_relu stem_pool one_conv_b one_norm_b one_add one_relu",
         "stem_conv one_conv_b", "one_conv_a two_conv two_shortcut"),
        # Global pooling ties convolutions to dense readers, and dense layers make channels too.
        ("two_conv two_norm two_shortcut two_add two_relu pool", "two_conv two_shortcut", "hidden"),
        ("hidden hidden_norm hidden_relu", "hidden", "logits"),
    ],
)  # fmt: skip
def test_layers_are_tied_by_additions_pooling_and_normalisation(
    members: str, producers: str, readers: str
) -> None:
    group = channel_groups(residual())[producers.split()[0]]
    assert set(group.members) == set(members.split())
    assert (group.producers, group.readers) == (tuple(producers.split()), tuple(readers.split()))
    assert not group.fixed


def test_the_dataset_fixes_the_samples_and_the_classes() -> None:
    fixed = {name: g.members for name, g in channel_groups(residual()).items() if g.fixed}
    assert fixed == {"image": ("image",), "logits": ("logits", "probabilities")}


def test_what_a_flatten_reads_cannot_widen_and_what_it_gives_neither() -> None:
    groups = channel_groups(volumes())
    assert groups["three"].members == ("three", "shortcut", "sum", "sum_relu", "sum_pool")
    assert groups["three"].fixed
    assert groups["flat"].members == ("flat",)
    assert groups["flat"].readers == ("hidden",)
    assert groups["flat"].fixed
    free = [name for name, group in groups.items() if not group.fixed]
    assert free == ["one", "two", "hidden"]


def test_a_dropout_passes_on_the_channels_of_a_flatten() -> None:
    groups = channel_groups(flat_images())
    assert groups["flat"].members == ("flat", "dropped")
    assert [name for name, group in groups.items() if not group.fixed] == ["hidden"]


def test_resnet50_has_a_group_for_each_stage_and_two_for_each_block() -> None:
    groups = channel_groups(resnet50())
    free = [group for group in groups.values() if not group.fixed]
    assert len(free) == 1 + 4 + 2 * 16  # The stem, the stages' sums, the insides of the blocks.
    assert groups["s2b1_c_conv"].producers == (
        "s2b1_c_conv", "s2b1_shortcut_conv", "s2b2_c_conv", "s2b3_c_conv", "s2b4_c_conv",
    )  # fmt: skip


@settings(max_examples=50)
@given(
    seed=st.integers(0, 2**32 - 1),
    depth=st.integers(0, 6),
    make=st.sampled_from([*SMALL, THIN[0]]),
)
def test_groups_of_any_morph_are_a_partition_into_equal_channels(
    seed: int, depth: int, make: Callable[[], Graph]
) -> None:
    graph = make()
    graph = grow(graph, random_chain(graph, depth, np.random.default_rng(seed)))
    groups = channel_groups(graph)
    members = [name for group in groups.values() for name in group.members]
    assert sorted(members) == sorted(graph.by_name)
    for name, group in groups.items():
        assert name in group.members
        assert len({graph.shapes[member][-1] for member in group.members}) == 1
        assert set(group.producers) <= set(group.members)
        for reader in group.readers:
            assert set(graph.by_name[reader].inputs) <= set(group.members)


@pytest.mark.parametrize("make", [*SMALL, *THIN])
def test_every_kernel_reads_one_group(make: Callable[[], Graph]) -> None:
    graph = make()
    readers = [reader for group in channel_groups(graph).values() for reader in group.readers]
    with_kernel = [name.removesuffix("/kernel") for name in graph.parameters if "/kernel" in name]
    assert sorted(readers) == sorted(with_kernel)
