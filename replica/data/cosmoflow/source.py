"""The official files, a TFRecord file a sample: stored byte by byte, compressed or not."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from aiperf_hpc.replica.data.cosmoflow import samples
from aiperf_hpc.replica.data.cosmoflow.samples import PARAMETERS
from aiperf_hpc.replica.data.sharded.preparation import Loaded, prepare
from aiperf_hpc.replica.data.staging import Options
from aiperf_hpc.trial import DatasetInfo, TensorSpec

NAME = "cosmoflow"


class Kind(NamedTuple):
    """What all samples of a dataset have in common."""

    shape: tuple[int, ...]
    compressed: bool

    def __str__(self) -> str:
        sizes = " x ".join(str(size) for size in self.shape)
        return f"{sizes}, {'GZIP' if self.compressed else 'not compressed'}"

    @property
    def inputs(self) -> dict[str, TensorSpec]:
        return {"volume": TensorSpec(shape=self.shape)}

    @property
    def targets(self) -> dict[str, TensorSpec]:
        return {"values": TensorSpec(shape=(PARAMETERS,))}

    @property
    def classes(self) -> None:
        return None


class OfficialFiles:
    """See ``sharded.preparation.SourceFormat``."""

    name = NAME
    unit = "volumes"
    pattern = "*.tfrecord*"
    shard_samples = 64
    """What one universe was cut into."""

    def load(self, path: Path) -> Loaded:
        content = path.read_bytes()
        sample = samples.read(content)
        kind = Kind(sample.counts.shape, samples.is_compressed(content))
        return Loaded(content, sample.sha256, kind)


def prepare_cosmoflow(source: Path, target: Path, options: Options | None = None) -> DatasetInfo:
    """Make the folder ``target`` of shards out of the official files; as ``sharded.prepare``."""
    return prepare(OfficialFiles(), source, target, options)
