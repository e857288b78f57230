"""The tutorial for a computing centre: its commands in order, and the output that it shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from tests.slurm.conftest import ROOT, Cluster
from tests.support.imagenet_source import write_source
from tests.support.waiting import PATIENCE_SECONDS, until_recorded

from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.paths import RunPaths

TUTORIAL = ROOT / "docs" / "tutorials" / "centre.md"
INSTALL = "$ /shared/aiperf/bin/pip install --constraint deploy/constraints.txt '.[torch]'"
CONFIG = "--config /shared/imagenet.yaml"
SMALL = (
    "dataset.image_size=32", "model.base_width=2", "model.blocks=[1,1,1,1]",
    "training.batch_size=8", "training.max_epochs=2", "rounds.warmup_epochs=[1,1,1]",
    "hpo.space.batch_size={low: 4, high: 8, step: 4}", "search.workers=1",
    "peaks.at_start_seconds=0",
    "engine.device=cpu", "replica.ranks_per_node=2", "replica.collective=torch",
    "slurm.partition=bench", "slurm.gres=gpu:4", "slurm.cpus_per_task=2",
)  # fmt: skip
REPLACED = (
    # A small network on two nodes of the cluster, whose GPUs compute nothing.
    (CONFIG, " ".join([CONFIG, *(f"--set '{setting}'" for setting in SMALL)])),
    ("--nodes 16", "--nodes 2"),
    ("--partition=gpu", "--partition=bench"),
    ("--cpus-per-task=64", "--cpus-per-task=8"),
    ("gpu:8", "gpu:4"),
    (", SLURM and GPUs.", "…SLURM…"),
    # The small images are not ImageNet, and a checkout between two releases is not one.
    ("--division open ", ""),
)  # fmt: skip
"""What a command, or its output, has on the page, and what it has here. The folders /shared and
/archives are the test's, and ``INSTALL`` links the packages of this environment."""


def test_commands_print_what_the_page_shows(accelerated: Cluster, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    write_source(tmp_path / "archives" / "imagenet")
    site = Site(accelerated, tmp_path)
    try:
        for block in blocks(TUTORIAL.read_text("utf-8")):
            if block.startswith("preset:"):
                config = site.folder / "shared" / "imagenet.yaml"
                config.write_text(site.here(block), "utf-8")
            for command, output in commands(block):
                site.carry_out(command, output)
    finally:
        site.stop_runs()
    assert not site.unused


def blocks(page: str) -> list[str]:
    return re.findall(r"^```\w*\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


def commands(block: str) -> Iterator[tuple[str, list[str]]]:
    """Return each command behind a prompt, with the lines of its output."""
    for each in re.split(r"^(?=[$] )", block, flags=re.MULTILINE)[1:]:
        command, *output = each.replace("\\\n", "").splitlines()
        yield command, output


class Site:
    """A computing centre with the cluster, whose file systems are in a folder."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.unused = {INSTALL, *(there for there, _ in REPLACED)}
        """Replacements for which no command of the page has had a use yet."""
        self.sourced: list[str] = []
        path = [str(Path(sys.executable).parent), cluster.environment["PATH"]]
        self.environment = {
            **cluster.environment, "PATH": os.pathsep.join(path), "HOME": str(folder)
        }  # fmt: skip

    def here(self, text: str) -> str:
        """Return a text of the page with the names of this site."""
        for there, here in REPLACED:
            if there in text:
                self.unused.discard(there)
                text = text.replace(there, here)
        return re.sub("(?<![^ =:])/(?=shared|archives)", f"{self.folder}/", text)

    def carry_out(self, command: str, output: list[str]) -> None:
        if command == INSTALL:
            self.unused.discard(INSTALL)
            return link_packages(self.folder / "shared" / "aiperf")
        given = self.here(command.removeprefix("$ "))
        printed = self.printed_by(given)
        if given.startswith(". "):
            self.sourced.append(given)
        expected = "".join(_pattern(self.here(line)) for line in output)
        assert re.fullmatch(expected or ".*", printed, re.DOTALL), f"{command}\n{printed}"
        return None

    def printed_by(self, command: str) -> str:
        """Carry out a command to its end, or that of the run which it starts or watches."""
        with subprocess.Popen(
            ["bash", "-c", "\n".join([*self.sourced, command])],
            cwd=ROOT,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            if run := lasting_run(command):
                until_recorded(trained, RunHistory(RunPaths(Path(run))), process)
                self.stop(run)
            printed, errors = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == 0, f"{command}\n{printed}{errors}"
        return printed

    def stop(self, run: str | Path) -> None:
        stopped = self.cluster.aiperf("stop", run)
        assert stopped.returncode == 0, stopped.stderr

    def stop_runs(self) -> None:
        """Leave no primary behind."""
        for paths in map(RunPaths, (self.folder / "shared").glob("runs/*")):
            if RunHistory.read(paths).run_ended is None:
                self.stop(paths.root)


def link_packages(environment: Path) -> None:
    """Let a new virtual environment have the packages of this one, without a copy of them."""
    (packages,) = environment.glob("lib/python*/site-packages")
    here = sysconfig.get_path("purelib")
    (packages / "linked.pth").write_text(f"import site; site.addsitedir({here!r})\n")
    program = environment / "bin" / "aiperf"
    program.write_text(
        f"#!{environment}/bin/python\nimport sys\nfrom aiperf_hpc.cli import main\n"
        "sys.exit(main())\n"
    )
    program.chmod(0o755)


def lasting_run(command: str) -> str | None:
    """Return the folder of the run that a command waits for, if it does."""
    words = command.split()
    if not {"start", "watch"} & set(words[:2]) or {"--dry-run", "--detach"} & set(words):
        return None
    return next(word for word in words if "/runs/" in word)


def trained(history: RunHistory) -> bool:
    """Return whether each replica has trained a network and evaluated it."""
    replicas = {trial.replica for trial in history.ended if trial.evaluations}
    return bool(replicas) and replicas == history.replicas.keys()


def _pattern(line: str) -> str:
    """Return what a line of output matches: … is anything, on a line of its own any lines."""
    if line == "…":
        return r"(?:.*\n)?"
    return re.escape(line).replace("…", "[^\n]*") + r"\n"
