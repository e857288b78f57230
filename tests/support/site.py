"""The documentation as a site."""

from __future__ import annotations

from pathlib import Path

from mkdocs.commands.build import build
from mkdocs.config import load_config

CONFIGURATION = Path(__file__).parents[2] / "mkdocs.yml"


def build_site(folder: Path) -> Path:
    """Build it: a link or an anchor that leads nowhere is a warning, and these end the build."""
    config = load_config(str(CONFIGURATION), site_dir=str(folder))
    assert config.strict
    build(config)
    return folder
