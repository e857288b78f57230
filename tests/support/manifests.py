"""Manifests of reports that were forged to agree with changed files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from aiperf_hpc.results.report.files import HashedFile, hashed_file
from aiperf_hpc.results.report.provenance import ReportManifest
from aiperf_hpc.run.paths import RunPaths

Files = tuple[HashedFile, ...]


def change_manifest(paths: RunPaths, change: Callable[[Files], Files]) -> None:
    """Let the manifest of a run name other files."""
    manifest = ReportManifest.model_validate_json(paths.report_manifest.read_bytes())
    changed = manifest.model_copy(update={"files": change(manifest.files)})
    paths.report_manifest.write_bytes(changed.content())


def restate(paths: RunPaths, file: Path, content: bytes) -> None:
    """Change a file, and its SHA-256 in the manifest with it."""
    assert content != file.read_bytes()
    file.write_bytes(content)
    name = str(file.relative_to(paths.root))
    new = hashed_file(name, content)
    change_manifest(paths, lambda files: tuple(new if f.path == name else f for f in files))
