"""``aiperf count``."""

from __future__ import annotations

import argparse
from pathlib import Path

from aiperf_hpc.errors import GraphError, UsageError, reason_of
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.networks.resnet import resnet50
from aiperf_hpc.ops_counter.count import GraphCount, count
from aiperf_hpc.primary.cli.output import say, say_json
from aiperf_hpc.primary.cli.parser import Commands
from aiperf_hpc.primary.formatting import si


def add(commands: Commands) -> None:
    """Add ``count``."""
    counting = commands.add_parser("count", help="count a network's operations for one sample")
    counting.add_argument("network", metavar="resnet50|GRAPH.json")
    counting.add_argument("--input", default="224x224x3", metavar="HxWxC", help="for resnet50")
    counting.add_argument("--classes", type=int, default=1000, help="for resnet50")
    counting.add_argument("--stem", choices=("imagenet", "cifar"), default="imagenet")
    counting.add_argument("--per-layer", action="store_true", help="a row for each layer")
    counting.add_argument("--json", action="store_true", help="print JSON")
    counting.set_defaults(command=_count)


def _count(options: argparse.Namespace) -> int:
    graph = _network(options)
    counted = count(graph)
    if options.json:
        say_json(_count_document(graph, counted, options.per_layer))
        return 0
    if options.per_layer:
        for name, layer in counted.layers.items():
            shape = "x".join(str(n) for n in layer.output)
            done = layer.operations
            say(f"{name:<28} {layer.kind:<22} {shape:<14} {done.forward:>16,} "
                 f"{done.backward:>16,}")  # fmt: skip
        say("")
    say(f"{'kind of layer':<24} {'forward':>18} {'backward':>18}")
    for kind, done in counted.by_kind().items():
        say(f"{kind:<24} {done.forward:>18,} {done.backward:>18,}")
    say(f"{'total':<24} {counted.forward:>18,} {counted.backward:>18,}")
    say(
        f"\n{si(counted.training, 'OP')} for one training sample ({counted.training:,}), "
        f"{si(counted.forward, 'OP')} for one validation sample; "
        f"backward/forward {counted.backward / max(counted.forward, 1):.4f}; "
        f"{graph.parameter_count:,} parameters, depth {graph.depth}, hash {graph.hash}"
    )
    return 0


def _count_document(graph: Graph, counted: GraphCount, per_layer: bool) -> dict[str, object]:
    document: dict[str, object] = {
        "hash": graph.hash,
        "parameters": graph.parameter_count,
        "depth": graph.depth,
        "forward": counted.forward,
        "backward": counted.backward,
        "training": counted.training,
        "by_kind": {
            kind: {"forward": done.forward, "backward": done.backward, "update": done.update}
            for kind, done in counted.by_kind().items()
        },
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


def _network(options: argparse.Namespace) -> Graph:
    if options.network == "resnet50":
        try:
            shape = tuple(int(n) for n in options.input.split("x"))
        except ValueError:
            shape = ()
        if len(shape) != 3 or min(shape) < 1:
            raise UsageError(
                f"--input {options.input}: write HEIGHTxWIDTHxCHANNELS, e.g. 224x224x3"
            )
        if options.classes < 2:
            raise UsageError(f"--classes {options.classes}: a network needs at least 2 classes")
        return resnet50(shape, options.classes, stem=options.stem)
    path = Path(options.network)
    try:
        return Graph.from_json(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the graph {path}: {reason_of(error)}") from None
    except GraphError as error:
        raise UsageError(f"{path}: {error}") from None
