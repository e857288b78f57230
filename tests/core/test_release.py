"""What the package says of itself in several places is the same."""

from __future__ import annotations

import tomllib
from pathlib import Path

import yaml

from aiperf_hpc import __version__

ROOT = Path(__file__).parents[2]


def test_the_citation_is_of_this_version_under_the_license_of_the_package() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert citation["version"] == __version__
    assert citation["license"] == project["license"] == "Apache-2.0"
    assert project["license-files"] == ["LICENSE"]
    text = (ROOT / "LICENSE").read_text("utf-8")
    assert "Apache License" in text.splitlines()[1]
    assert text.rstrip().endswith("limitations under the License.")
