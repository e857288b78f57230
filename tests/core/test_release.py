"""What the package states of itself in several places is the same; releases and their files."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
import yaml
from tests.support.source_tree import ROOT, built, committed, copy_tree, git_in, unpack_wheel

from aiperf_hpc import __version__
from aiperf_hpc.integrity.commit import STAMP
from aiperf_hpc.integrity.release import file_digests

LINKED = Path("src/aiperf_hpc")


def test_the_citation_is_of_this_version_under_the_license_of_the_package() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert citation["version"] == __version__
    assert citation["license"] == project["license"] == "Apache-2.0"
    assert project["license-files"] == ["LICENSE"]
    text = (ROOT / "LICENSE").read_text("utf-8")
    assert "Apache License" in text.splitlines()[1]
    assert text.rstrip().endswith("limitations under the License.")


def tracked_files() -> set[str]:
    """Return the files of the repository, as git lists them."""
    if not (ROOT / ".git").exists():
        pytest.skip("which files are the repository's is told by git")
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=True
    )
    return {name for name in listed.stdout.split("\0") if name and not name.startswith(".")}


def test_the_source_distribution_is_the_repository_with_its_commit(tmp_path: Path) -> None:
    tracked = tracked_files()
    tree, unpacked = tmp_path / "tree", tmp_path / "unpacked"
    for name in (*tracked, ".gitignore"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name, follow_symlinks=False)
    first = committed(tree)
    command = [sys.executable, "setup.py", "-q", "sdist", "--dist-dir", str(tmp_path)]
    subprocess.run(command, check=True, cwd=tree, capture_output=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        files = {member.name.partition("/")[2]: member for member in opened if not member.isdir()}
    assert tracked - files.keys() == set()
    made = {"PKG-INFO", "setup.cfg", f"{LINKED}/{STAMP}"}
    more = {name for name in files.keys() - tracked - made if ".egg-info/" not in name}
    assert more == set()
    assert files["src/aiperf_hpc/primary"].linkname == "../../primary"
    unpacked.mkdir()
    subprocess.run(["tar", "-xf", archive, "-C", unpacked], check=True)
    (source,) = unpacked.iterdir()
    assert built(source, tmp_path / "built") == first


def test_extras_that_pages_install_are_the_packages() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "deploy" / "README.md"]
    text = "\n".join(page.read_text("utf-8") for page in pages)
    asked = re.findall(r"'(?:[.]|(aiperf_hpc-[^']*[.]whl))\[([a-z,]+)\]'", text)
    assert {extra for _, extras in asked for extra in extras.split(",")} >= {"cpu", "torch", "mpi"}
    for wheel, extras in asked:
        assert set(extras.split(",")) <= project["optional-dependencies"].keys()
        assert wheel in ("", f"aiperf_hpc-{__version__}-py3-none-any.whl")


# Releases.

JUDGE = """
import json
from aiperf_hpc import __version__
from aiperf_hpc.rules.registry import RELEASE
from aiperf_hpc.rules.validity.software import Code
from aiperf_hpc.integrity.release import FILES, changes, package_digest
versions = {"aiperf-hpc": __version__, FILES: package_digest()}
print(json.dumps(RELEASE.check(Code(versions, changes())).failures))
"""


def python(source: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the package in a folder."""
    return subprocess.run(
        [sys.executable, *arguments], env={"PYTHONPATH": str(source)}, cwd=source,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def judged(source: Path) -> list[str]:
    """Return what the rule ``release`` finds of the package in a folder."""
    done = python(source, "-c", JUDGE)
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout)
    return found


def release(source: Path) -> subprocess.CompletedProcess[str]:
    """Write the list of the files of the package in a folder."""
    return python(source, "-m", "aiperf_hpc.integrity.release")


def test_each_tracked_file_of_the_package_counts() -> None:
    folders = {path.name for path in (ROOT / LINKED).iterdir() if path.is_symlink()}
    tracked = {
        name.removeprefix(f"{LINKED}/")
        for name in tracked_files()
        if name.partition("/")[0] in folders or name.startswith(f"{LINKED}/")
    }
    lists = {name for name in tracked if name.startswith("releases/")}
    assert file_digests().keys() >= tracked - folders - lists


def test_a_checkout_and_a_wheel_are_the_release_until_a_file_differs(tmp_path: Path) -> None:
    source = copy_tree(tmp_path / "tree") / "src"
    shutil.rmtree(source / "aiperf_hpc" / "releases", ignore_errors=True)
    (unreleased,) = judged(source)
    assert unreleased == (
        f"version {__version__} is not released; run a released version (none exists yet)"
    )
    done = release(source)
    assert (done.returncode, done.stderr) == (0, "")
    table = Path(done.stdout.strip())
    assert table == source / "aiperf_hpc" / "releases" / f"{__version__}.sha256"
    again = release(source)
    assert again.returncode == 2
    assert again.stderr.endswith(f"{__version__} is released; raise the version first\n")
    stale = tmp_path / "tree" / "build" / "lib" / "aiperf_hpc" / "primary" / "stale.py"
    stale.parent.mkdir(parents=True)
    stale.touch()  # Of an earlier build.
    installed = unpack_wheel(tmp_path / "tree", tmp_path / "site-packages")
    assert file_digests(installed / "aiperf_hpc") == file_digests(source / "aiperf_hpc")
    (installed / "aiperf_hpc" / STAMP).write_text("0123\n")
    for place in (source, installed):
        package = place / "aiperf_hpc"
        assert judged(place) == []
        assert list(package.rglob("__pycache__"))  # Written before the files were hashed.
        check = ["sha256sum", "--check", "--strict", "--quiet", str(table)]
        assert subprocess.run(check, cwd=package, check=False).returncode == 0
        score = package / "ops_counter" / "score.py"
        score.write_bytes(score.read_bytes().replace(b"O", b"0", 1))
        (package / "configs" / "simulated.yaml").unlink()
        (package / "primary" / "more.py").touch()
        assert judged(place) == [
            f"not release {__version__}: configs/simulated.yaml missing, ops_counter/score.py "
            "changed, primary/more.py added; install the release unchanged"
        ]


def test_only_a_checkout_without_changes_is_released(tmp_path: Path) -> None:
    tree = copy_tree(tmp_path / "tree")
    shutil.rmtree(tree / LINKED / "releases", ignore_errors=True)
    committed(tree)
    for name in ("primary/draft.py", "README.md"):
        with (tree / name).open("a") as file:
            file.write("# more\n")
    done = release(tree / "src")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "README.md is not committed (2 in all); release a clean checkout\n"
    (tree / "primary" / "draft.py").unlink()
    git_in(tree)("checkout", "-q", ".")
    assert release(tree / "src").returncode == 0
