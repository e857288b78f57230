"""The rule on stored weights: their shapes are those of the graphs in the records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from aiperf_hpc.errors import CheckpointError, MorphismError, reason_of
from aiperf_hpc.morphism.weights.weight_file import expected_shapes, stored_shapes
from aiperf_hpc.rules.consistency.evidence import Evidence
from aiperf_hpc.rules.rule import Checked, Each, Findings, Note


def shapes(run: Evidence) -> Findings:
    """Stored weights have the shapes in the graphs that the records state of them.

    Weights that are missing or damaged contradict nothing.
    """
    checked = 0
    for path, name, whole in _stored_weights(run):
        try:
            expected = expected_shapes(run.lineage.graph(name))
            stored = stored_shapes(path)
        except MorphismError:
            continue  # Reported by the rule ``graphs``.
        except (OSError, CheckpointError) as error:
            yield Note(reason_of(error))
            continue
        checked += 1
        others = expected.items() ^ stored.items() if whole else expected.items() - stored.items()
        if others:
            array = min(others)[0]
            there, wanted = stored.get(array, "missing"), expected.get(array, "none")
            where = path.relative_to(run.paths.root)
            yield Each(f"{where}: the shape of {array} is {there}, in the graph of {name} {wanted}")
    yield Checked(checked)


def _stored_weights(run: Evidence) -> Iterator[tuple[Path, str, bool]]:
    """Yield the files of weights, the trial or proposal of each, and whether it has only weights.

    Checkpoints of epochs also have the optimizer's state.
    """
    trials, proposals = run.history.trials, run.history.proposals
    for path in run.paths.candidates.glob("*.safetensors"):
        if path.stem in proposals:
            yield path, path.stem, True
    for replica in run.history.replicas:
        for path in run.paths.trained(replica, "").parent.glob("*.safetensors"):
            if path.stem in trials:
                yield path, path.stem, True
        for path in run.paths.epoch_began(replica, "").parent.glob("*.safetensors"):
            if (name := path.stem.rpartition("-")[0]) in trials:
                yield path, name, False
