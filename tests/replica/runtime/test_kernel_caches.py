"""Kernel caches are empty at the start of each process."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from aiperf_hpc.errors import AIPerfError
from aiperf_hpc.replica.runtime.kernel_caches import PREFIX, own_kernel_caches
from aiperf_hpc.system.software import KERNEL_CACHES, recorded_variables


def test_each_process_has_its_own_empty_caches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the variables name the caches of an earlier run."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    filled = dict.fromkeys(KERNEL_CACHES, "/filled/by/an/earlier/run")
    one, other = dict(filled), dict(filled)
    with own_kernel_caches(one) as first, own_kernel_caches(other) as second:
        for environment, folder in ((one, first), (other, second)):
            assert [*folder.iterdir()] == []
            places = {Path(value).parent for value in environment.values()}
            assert places == {folder}
            assert len({*environment.values()}) == len(KERNEL_CACHES)
        assert first != second
        (first / "inductor").mkdir()
        assert recorded_variables(one) == {}
    assert [*tmp_path.iterdir()] == []


def test_a_node_without_space_for_caches_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/proc/none")
    why = "cannot create a folder for compiled kernels: .*; set TMPDIR"
    with pytest.raises(AIPerfError, match=why), own_kernel_caches({}):
        pass


def test_only_old_folders_of_killed_processes_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    young, old = tmp_path / f"{PREFIX}young", tmp_path / f"{PREFIX}old"
    for folder in (young, old):
        (folder / "inductor").mkdir(parents=True)
    os.utime(old, (0.0, 0.0))
    with own_kernel_caches({}) as in_use:
        os.utime(in_use, (0.0, 0.0))
        with own_kernel_caches({}):
            assert (young.exists(), old.exists(), in_use.exists()) == (True, False, True)
