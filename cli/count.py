"""``aiperf count``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument

from aiperf_hpc.cli.output import say_json, say_lines
from aiperf_hpc.cli.parameters import Json, flag, value
from aiperf_hpc.errors import GraphError, UsageError, did_you_mean, restated
from aiperf_hpc.formatting import si
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.resnet import resnet50
from aiperf_hpc.ops_counter.count import GraphCount, count
from aiperf_hpc.run.graph_store import MOST_GRAPH_BYTES
from aiperf_hpc.untrusted.files import text_of

NETWORKS = ("resnet50",)


@dataclass(frozen=True)
class CountedNetwork:
    """Selection of the network."""

    network: Annotated[str, Argument(metavar="resnet50|GRAPH.json")]
    """resnet50, or a graph in JSON."""
    input: Annotated[str, value("HxWxC")] = "224x224x3"
    """Shape of an image, for resnet50."""
    classes: Annotated[int, value("N")] = 1000
    """Number of classes, for resnet50."""
    stem: Literal["imagenet", "cifar"] = "imagenet"
    """First layers, for resnet50."""


def count_operations(
    counted: CountedNetwork,
    per_layer: Annotated[bool, flag("--per-layer", "Print a row for each layer.")] = False,
    json: Json = False,
) -> int:
    """Count a network's operations for one sample.

    Examples:
      $ aiperf count resnet50
      $ aiperf count resnet50 --input 32x32x3 --classes 10 --stem cifar --per-layer
    """
    graph = _network(counted)
    done = count(graph)
    if json:
        say_json(_count_document(graph, done, per_layer))
    else:
        say_lines(_lines(graph, done, per_layer))
    return 0


def _lines(graph: Graph, counted: GraphCount, per_layer: bool) -> Iterator[str]:
    if per_layer:
        for name, layer in counted.layers.items():
            shape = "x".join(str(n) for n in layer.output)
            done = layer.operations
            yield (
                f"{name:<28} {layer.kind:<22} {shape:<14} {done.forward:>16,} {done.backward:>16,}"
            )
        yield ""
    yield (f"{'kind of layer':<24} {'forward':>18} {'backward':>18}")
    for kind, done in counted.by_kind().items():
        yield (f"{kind:<24} {done.forward:>18,} {done.backward:>18,}")
    yield (f"{'total':<24} {counted.forward:>18,} {counted.backward:>18,}")
    yield ""
    yield (
        f"{si(counted.training, 'OP')} for one training sample ({counted.training:,}), "
        f"{si(counted.forward, 'OP')} for one validation sample; "
        f"backward/forward {counted.backward / max(counted.forward, 1):.4f}; "
        f"{graph.parameter_count:,} parameters, depth {graph.depth}, hash {graph.hash}"
    )


def _count_document(graph: Graph, counted: GraphCount, per_layer: bool) -> dict[str, object]:
    document: dict[str, object] = {
        "hash": graph.hash,
        "parameters": graph.parameter_count,
        "depth": graph.depth,
        "forward": counted.forward,
        "backward": counted.backward,
        "training": counted.training,
        "by_kind": {kind: operations._asdict() for kind, operations in counted.by_kind().items()},
    }
    if per_layer:
        document["layers"] = [
            {
                "name": name,
                "kind": layer.kind,
                "output": layer.output,
                "parameters": layer.parameters,
                "forward": layer.operations.forward,
                "backward": layer.operations.backward,
            }
            for name, layer in counted.layers.items()
        ]
    return document


def _network(counted: CountedNetwork) -> Graph:
    if counted.network in NETWORKS:
        try:
            shape = tuple(int(n) for n in counted.input.split("x"))
        except ValueError:
            shape = ()
        if len(shape) != 3 or min(shape) < 1:
            raise UsageError(
                f"--input {counted.input}: write HEIGHTxWIDTHxCHANNELS, e.g. 224x224x3"
            )
        if counted.classes < 2:
            raise UsageError(f"--classes {counted.classes}: a network needs at least 2 classes")
        return resnet50(shape, counted.classes, stem=counted.stem)
    path = Path(counted.network)
    if not path.suffix and not path.exists():
        raise UsageError(
            f"no network and no file '{path}'{did_you_mean(str(path), NETWORKS)}; "
            f"networks: {', '.join(NETWORKS)}"
        )
    with restated(f"cannot read the graph {path}"):
        text = text_of(path, MOST_GRAPH_BYTES)
    with restated(str(path), caught=GraphError):
        return Graph.from_json(text)
