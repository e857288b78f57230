"""What a network is given of a stored volume: the logarithms of its counts, and its parameters."""

from __future__ import annotations

import numpy as np

from aiperf_hpc.replica.data.base import Batch
from aiperf_hpc.replica.data.cosmoflow import samples
from aiperf_hpc.replica.data.cosmoflow.samples import PARAMETERS
from aiperf_hpc.replica.data.cosmoflow.source import NAME
from aiperf_hpc.trial import DatasetInfo


class CosmoFlowCodec:
    """See ``sharded.dataset.Codec``."""

    name = NAME

    def empty(self, info: DatasetInfo, number: int) -> Batch:
        return Batch(
            {"volume": np.empty((number, *info.input_shape("volume")), np.float32)},
            {"values": np.empty((number, PARAMETERS), np.float32)},
        )

    def decode(self, content: memoryview, batch: Batch, at: int) -> None:
        sample, volumes = samples.read(content), batch.inputs["volume"]
        if sample.counts.shape != volumes.shape[1:]:
            raise ValueError(f"a volume of {sample.counts.shape}, not {volumes.shape[1:]}")
        samples.logarithms(sample.counts, volumes[at])
        batch.targets["values"][at] = sample.parameters

    def sha256(self, content: memoryview) -> str:
        return samples.read(content).sha256
