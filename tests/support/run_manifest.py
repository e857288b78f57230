"""Small manifests of runs."""

from __future__ import annotations

from aiperf_hpc.config import RunConfig
from aiperf_hpc.run.manifest import RunManifest


def run_manifest(config: RunConfig, **changed: object) -> RunManifest:
    """Return that of a run on this machine, of one node and an hour if nothing else is said."""
    facts = {"run_id": "run", "nodes": 1, "hours": 1.0, "launcher": "local", "versions": {}}
    return RunManifest.model_validate({**facts, "commit": None, "config": config, **changed})
