from __future__ import annotations

from aiperf_hpc.graph import Conv2D, Dense, Graph, MaxPool2D, Shape
from aiperf_hpc.morphism.resnet import resnet50


def convs(graph: Graph) -> dict[str, Conv2D]:
    return {n.name: n.layer for n in graph.nodes if isinstance(n.layer, Conv2D)}


def stage_shapes(graph: Graph) -> list[Shape]:
    return [graph.shapes[f"s{stage}b{blocks}_relu"] for stage, blocks in enumerate((3, 4, 6, 3), 1)]


def test_it_has_50_layers_with_kernels_and_the_papers_parameters() -> None:
    graph = resnet50()
    projections = [name for name in convs(graph) if "shortcut" in name]
    dense = [n for n in graph.nodes if isinstance(n.layer, Dense)]
    assert len(convs(graph)) + len(dense) - len(projections) == 50
    assert len(projections) == 4
    assert graph.depth == 50
    assert graph.parameter_count == 25_557_032


def test_the_shapes_of_the_stages_at_32_with_the_stem_for_small_images() -> None:
    graph = resnet50((32, 32, 3), 10, stem="cifar")
    assert graph.shapes["stem_relu"] == (32, 32, 64)
    assert not any(isinstance(n.layer, MaxPool2D) for n in graph.nodes)
    assert stage_shapes(graph) == [(32, 32, 256), (16, 16, 512), (8, 8, 1024), (4, 4, 2048)]
    assert graph.shapes["probabilities"] == (10,)
    assert graph.depth == 50


def test_the_width_scales_all_channels_but_those_of_the_dataset() -> None:
    half = resnet50(base_width=32)
    for name, conv in convs(resnet50()).items():
        assert convs(half)[name].channels * 2 == conv.channels
    assert half.shapes["image"] == (224, 224, 3)
    assert half.shapes["logits"] == (1000,)


def test_images_need_be_neither_square_nor_large() -> None:
    assert stage_shapes(resnet50((37, 50, 1), 2))[-1] == (2, 2, 2048)
    assert stage_shapes(resnet50((1, 1, 1), 2))[-1] == (1, 1, 2048)
