"""The commit that a run records is that of the code that runs, or none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.source_tree import (
    ROOT,
    Git,
    built,
    committed,
    copy_tree,
    git_in,
    unpack_wheel,
)  # fmt: skip

from aiperf_hpc.integrity import commit
from aiperf_hpc.integrity.commit import HERE, STAMP, commit_of


def made(top: Path, name: str = commit.PROJECT) -> tuple[Git, str]:
    """Make a repository that looks like the project's; return its commit."""
    (top / HERE).parent.mkdir(parents=True)
    shutil.copy(ROOT / HERE, top / HERE)
    (top / "pyproject.toml").write_text(f'[project]\nname = "{name}"\n')
    return git_in(top), committed(top)


def change(file: Path) -> None:
    file.write_text(file.read_text("utf-8") + "# changed\n", "utf-8")


def test_a_checkout_of_the_project(tmp_path: Path) -> None:
    git, first = made(tmp_path)
    assert commit_of(tmp_path / HERE) == first
    git("tag", "-am", "a tag is no commit", "v1")
    assert commit_of(tmp_path / HERE) == first
    (tmp_path / "link").symlink_to(tmp_path / "src")  # As an editable installation may.
    assert commit_of(tmp_path / "link" / HERE.relative_to("src")) == first
    change(tmp_path / "pyproject.toml")
    assert commit_of(tmp_path / HERE) == f"{first}+"


@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
def test_a_change_that_git_does_not_report(tmp_path: Path, flag: str) -> None:
    git, first = made(tmp_path)
    git("update-index", flag, "pyproject.toml")
    change(tmp_path / "pyproject.toml")
    assert commit_of(tmp_path / HERE) == f"{first}+"
    assert commit.uncommitted(tmp_path / HERE) == ["pyproject.toml"]


def test_a_sparse_checkout_is_unchanged_but_cannot_be_released(tmp_path: Path) -> None:
    git, _ = made(tmp_path)
    omitted = tmp_path / "docs" / "page.md"
    omitted.parent.mkdir()
    omitted.write_text("text", "utf-8")
    both = committed(tmp_path)
    git("sparse-checkout", "set", "src")
    assert not omitted.exists()
    assert commit_of(tmp_path / HERE) == both
    assert commit.uncommitted(tmp_path / HERE) == ["docs/page.md"]


def test_repositories_that_are_others(tmp_path: Path) -> None:
    made(tmp_path / "other", "another-project")
    assert commit_of(tmp_path / "other" / HERE) is None
    git, _ = made(tmp_path / "around", "around")
    vendored = tmp_path / "around" / "vendored"
    made(vendored)
    shutil.rmtree(vendored / ".git")
    git("add", ".")
    git("commit", "-qm", "with a copy of this project")
    assert commit_of(vendored / HERE) is None


def test_an_environment_in_the_checkout_is_not_the_checkout(tmp_path: Path) -> None:
    git, _ = made(tmp_path)
    installed = tmp_path / ".venv/lib/python3.11/site-packages/aiperf_hpc/commit.py"
    installed.parent.mkdir(parents=True)
    shutil.copy(ROOT / HERE, installed)
    assert commit_of(installed) is None
    git("add", "-f", ".")
    git("commit", "-qm", "an environment that is tracked")
    assert commit_of(installed) is None


def test_files_that_git_does_not_know_or_cannot_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git, first = made(tmp_path / "one")
    one = tmp_path / "one" / HERE
    git("rm", "-q", "--cached", HERE)
    assert commit_of(one) is None
    git("reset", "-q")
    assert commit_of(one) == first
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit_of(one) is None  # No git.
    monkeypatch.undo()
    shutil.rmtree(tmp_path / "one" / ".git")
    assert commit_of(one) is None  # As from a zip file.
    git("init", "-q")
    git("add", ".")
    assert commit_of(one) is None  # Without a commit.


def test_a_repository_of_someone_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, first = made(tmp_path)
    assert commit_of(tmp_path / HERE) == first
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    assert commit_of(tmp_path / HERE) == first  # What is set for git itself is not passed on.
    if os.geteuid() == 0:
        os.chown(tmp_path, 12345, 12345)
        os.chown(tmp_path / ".git", 12345, 12345)
        monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
        monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
        monkeypatch.delenv("SUDO_UID", raising=False)
        assert commit_of(tmp_path / HERE) is None


def test_what_the_environment_says_of_another_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, mine = made(tmp_path / "mine")
    _, theirs = made(tmp_path / "theirs")  # An equal tree, at another time.
    git_in(tmp_path / "theirs")("commit", "-q", "--amend", "-m", "theirs")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "theirs" / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path / "mine"))
    assert commit_of(tmp_path / "mine" / HERE) == mine


def test_a_submodule_a_worktree_and_a_shallow_clone(tmp_path: Path) -> None:
    git, first = made(tmp_path / "one")
    git("worktree", "add", "-q", "--detach", tmp_path / "tree")
    assert commit_of(tmp_path / "tree" / HERE) == first
    (tmp_path / "one" / "more").touch()
    git("add", ".")
    git("commit", "-qm", "second")
    second = git("rev-parse", "HEAD")
    git_in(tmp_path)("clone", "-q", "--depth=1", f"file://{tmp_path}/one", tmp_path / "shallow")
    assert commit_of(tmp_path / "shallow" / HERE) == second
    outer, _ = made(tmp_path / "outer", "outer")
    outer("-c", "protocol.file.allow=always", "submodule", "add", "-q", tmp_path / "one", "inner")
    outer("commit", "-qm", "with a submodule")
    assert commit_of(tmp_path / "outer" / "inner" / HERE) == second


# What is built.


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of this tree, without what it is not made of."""
    return copy_tree(tmp_path / "tree")


def test_a_wheel_is_stamped_with_the_commit_it_was_built_from(tree: Path, tmp_path: Path) -> None:
    first = committed(tree)
    # Installed in a repository that is another's: the stamp says which commit it is.
    made(tmp_path / "other")
    unpacked = unpack_wheel(tree, tmp_path / "other" / "site-packages")
    assert (unpacked / "aiperf_hpc/cli/program.py").exists()
    assert list(unpacked.glob("*.dist-info/licenses/LICENSE"))
    said = subprocess.run(
        [sys.executable, "-c", "from aiperf_hpc.integrity.commit import *; print(source_commit())"],
        env={"PYTHONPATH": str(unpacked)}, cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert said.stdout.strip() == first
    assert not (tree / HERE).parents[1].joinpath(STAMP).exists()
    change(tree / "README.md")
    assert built(tree, tmp_path / "changed") == f"{first}+"


def test_what_is_built_outside_of_git_has_no_stamp(tree: Path, tmp_path: Path) -> None:
    made(tmp_path / "around")
    inner = shutil.move(tree, tmp_path / "around" / "inner")
    assert built(Path(inner), tmp_path / "built") is None
