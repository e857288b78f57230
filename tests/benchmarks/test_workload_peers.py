"""The reference networks that workloads are measured beside: `benchmarks/workload_peers.py`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from aiperf_hpc.analysis.sections.valid_flops import known_count
from aiperf_hpc.replica.engines.torch.operation_count import CORRECTED

ROOT = Path(__file__).parents[2]


def test_deepcam_has_the_parameters_and_operations_of_the_workload(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import workload_peers  # type: ignore[import-not-found]

    with torch.device("meta"):
        network = workload_peers.deepcam("torch").network
        images = torch.empty(1, 16, 768, 1152)
    assert sum(parameter.numel() for parameter in network.parameters()) == 56_454_720
    with FlopCounterMode(display=False, custom_mapping=CORRECTED) as counter:
        logits = network(images)
        logits.sum().backward()
    assert logits.shape == (1, 3, 768, 1152)
    assert counter.get_total_flops() == known_count("deepcam", None).operations
