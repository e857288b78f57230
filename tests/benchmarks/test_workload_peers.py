"""The reference networks that workloads are measured beside: `benchmarks/workload_peers.py`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]


def test_deepcam_has_the_parameters_of_the_workload(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import workload_peers  # type: ignore[import-not-found]

    with torch.device("meta"):
        network = workload_peers.deepcam("torch").network
        logits = network(torch.empty(2, 16, 32, 48))
    assert sum(parameter.numel() for parameter in network.parameters()) == 56_454_720
    assert logits.shape == (2, 3, 32, 48)
