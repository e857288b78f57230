"""What the package says of itself in several places is the same."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
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


def test_the_source_distribution_is_the_repository(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("which files are the repository's is told by git")
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=True
    )
    tracked = {name for name in listed.stdout.split("\0") if name and not name.startswith(".")}
    tree = tmp_path / "tree"
    for name in tracked:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name, follow_symlinks=False)
    command = [sys.executable, "setup.py", "-q", "sdist", "--dist-dir", str(tmp_path)]
    subprocess.run(command, check=True, cwd=tree, capture_output=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        files = {member.name.partition("/")[2]: member for member in opened if not member.isdir()}
    assert tracked - files.keys() == set()
    made = {"PKG-INFO", "setup.cfg"}
    more = {name for name in files.keys() - tracked - made if ".egg-info/" not in name}
    assert more == set()
    assert files["src/aiperf_hpc/primary"].linkname == "../../primary"


def test_extras_that_pages_install_are_the_packages() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "deploy" / "README.md"]
    text = "\n".join(page.read_text("utf-8") for page in pages)
    asked = re.findall(r"'(?:[.]|(aiperf_hpc-[^']*[.]whl))\[([a-z,]+)\]'", text)
    assert {extra for _, extras in asked for extra in extras.split(",")} >= {"cpu", "torch", "mpi"}
    for wheel, extras in asked:
        assert set(extras.split(",")) <= project["optional-dependencies"].keys()
        assert wheel in ("", f"aiperf_hpc-{__version__}-py3-none-any.whl")
