"""The batch script, and what a dry run prints."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.primary.launchers.slurm.fake_slurm import manifest

from aiperf_hpc.errors import UNSEEN_PYTHON_STATUS, UNSEEN_RUN_STATUS, ConfigError
from aiperf_hpc.primary.launchers.backend import backend_of
from aiperf_hpc.primary.launchers.slurm.batch_script import batch_script
from aiperf_hpc.run.paths import RunPaths, write_whole


def directives(script: str) -> list[str]:
    return re.findall(r"^#SBATCH (.*)$", script, re.MULTILINE)


def test_without_a_configuration_the_site_decides(tmp_path: Path) -> None:
    script = batch_script(manifest(exclusive=False), RunPaths(tmp_path))
    assert directives(script) == [
        "--job-name=aiperf-now",
        "--array=0-2",
        "--nodes=1",
        "--ntasks-per-node=1",
        "--time=70",
        "--signal=TERM@120",
        "--requeue",
        "--open-mode=append",
        f"--output={tmp_path}/replicas/r%a/output.log",
    ]


def test_every_setting_becomes_a_directive(tmp_path: Path) -> None:
    asked = manifest(
        partition="bench",
        account="acc",
        qos="high",
        gres="gpu:h100:8",
        cpus_per_task=64,
        memory="0",
        constraint="a&b",
        reservation="res",
        extra_directives=["--nice=100", "--comment='two words'"],
    )
    script = batch_script(asked, RunPaths(tmp_path))
    assert directives(script)[9:] == [
        "--partition=bench",
        "--account=acc",
        "--qos=high",
        "--gres=gpu:h100:8",
        "--cpus-per-task=64",
        "--mem=0",
        "--constraint=a&b",
        "--reservation=res",
        "--exclusive",
        "--nice=100",
        "--comment='two words'",
    ]
    assert " --cpus-per-task=64 " in script.splitlines()[-2]


def test_the_last_command_is_the_step_itself(tmp_path: Path) -> None:
    script = batch_script(manifest(), RunPaths(tmp_path), launch=2)
    last = script.replace("\\\n", "").splitlines()[-1]
    assert last.startswith("exec srun --cpu-bind=none ")
    assert f"{sys.executable} -m aiperf_hpc.replica {tmp_path}" in last
    assert last.endswith('--replica "r${SLURM_ARRAY_TASK_ID}" --launch 2')
    assert "set -euo pipefail" in script


def test_a_replica_may_span_nodes_with_a_rank_for_each_accelerator(tmp_path: Path) -> None:
    ranks: dict[str, object] = {"nodes": 4, "ranks_per_node": 8}
    script = batch_script(manifest(12, replica=ranks, mpi="pmi2"), RunPaths(tmp_path))
    assert directives(script)[1:4] == ["--array=0-2", "--nodes=4", "--ntasks-per-node=8"]
    assert " --mpi=pmi2 --kill-on-bad-exit=1 " in script.splitlines()[-2]


@pytest.mark.parametrize(("collective", "mpi"), [("torch", False), ("horovod", True)])
def test_mpi_options(collective: str, mpi: bool, tmp_path: Path) -> None:
    ranks: dict[str, object] = {"ranks_per_node": 8, "collective": collective}
    last = batch_script(manifest(replica=ranks), RunPaths(tmp_path))
    assert (" --mpi=pmix " in last) == mpi
    assert " --kill-on-bad-exit=1 " in last


def test_the_time_limit_is_never_shorter_than_the_run(tmp_path: Path) -> None:
    for hours, minutes in ((1 / 60, 11), (1.0001, 71), (24.0, 1450)):
        script = batch_script(manifest(hours=hours), RunPaths(tmp_path))
        assert f"--time={minutes}" in directives(script)


def test_a_path_is_passed_on_as_it_is() -> None:
    script = batch_script(manifest(), RunPaths(Path("/scratch/my runs/50%/it's")))
    assert """#SBATCH --output='/scratch/my runs/50%%/it'"'"'s/replicas/r%a/output.log'""" in script
    assert """aiperf_hpc.replica '/scratch/my runs/50%/it'"'"'s' """ in script
    with pytest.raises(ConfigError, match="characters that SLURM changes"):
        batch_script(manifest(), RunPaths(Path("/scratch/a\nb")))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("#!/bin/sh\n$run_dir $last_replica $walltime", r"unknown name \$walltime"),
        ("#!/bin/sh\n$run_dir $last_replica ${}", "a dollar sign without a name"),
        ("#!/bin/sh\n$run_dir", r"does not use \$last_replica"),
    ],
)
def test_a_template_that_cannot_work_is_refused(tmp_path: Path, text: str, said: str) -> None:
    template = tmp_path / "site.sh"
    template.write_text(text)
    with pytest.raises(ConfigError, match=said):
        batch_script(manifest(template=str(template)), RunPaths(tmp_path))


def test_a_site_has_its_own_template(tmp_path: Path) -> None:
    template = tmp_path / "site.sh"
    template.write_text("#!/bin/sh\n#SBATCH --array=0-$last_replica\n$run_dir $$HOME\n")
    script = batch_script(manifest(template=str(template)), RunPaths(tmp_path))
    assert script == f"#!/bin/sh\n#SBATCH --array=0-2\n{tmp_path} $HOME\n"
    with pytest.raises(ConfigError, match=r"cannot read slurm\.template /nowhere"):
        batch_script(manifest(template="/nowhere"), RunPaths(tmp_path))


@pytest.mark.parametrize(
    "wrong",
    [
        {"partition": "a b"},
        {"partition": "$(reboot)"},
        {"memory": "lots"},
        {"extra_directives": ["nice"]},
        {"extra_directives": ["--nice\nreboot"]},
        {"cpus_per_task": 0},
        {"time_margin_minutes": 2, "signal_seconds": 120},
    ],
)
def test_settings_that_slurm_would_misread_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="slurm"):
        manifest(**wrong)


def test_a_dry_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    paths = RunPaths(tmp_path / "run")
    assert backend_of(manifest().launcher).dry_run(manifest(), paths) == batch_script(
        manifest(), paths
    )
    local = manifest().model_copy(update={"launcher": "local", "cores": ((0,), (1,))})
    lines = backend_of(local.launcher).dry_run(local, paths).splitlines()
    assert len(lines) == 2
    assert "--replica r1 --cores 1 --sharing 2" in lines[1]
    inside = manifest(nodes=2).model_copy(update={"launcher": "inside"})
    steps = backend_of(inside.launcher).dry_run(inside, paths).splitlines()
    assert [line.split()[:6][1::4] for line in steps] == [
        ["--jobid=JOB", "--nodelist=NODE0"], ["--jobid=JOB", "--nodelist=NODE1"],
    ]  # fmt: skip
    allocation = inside.model_copy(update={"launcher": "allocation"})
    asked, *same = backend_of(allocation.launcher).dry_run(allocation, paths).splitlines()
    assert asked.startswith("salloc --no-shell --no-kill --job-name=aiperf-now --nodes=2 ")
    assert same == steps
    assert not paths.root.exists()


EARLIER_TEMPLATE = """\
#!/bin/bash
#SBATCH --array=0-$last_replica
set -euo pipefail
[ -s $run_dir/run.yaml ] || exit 79
[ -x $python ] || exit 80
exec srun $step_options $python -m aiperf_hpc.replica $run_dir \\
  --replica "r$${SLURM_ARRAY_TASK_ID}" --launch $launch
"""


@pytest.mark.parametrize("template", [None, EARLIER_TEMPLATE], ids=["ours", "a site's"])
def test_exit_statuses_of_the_batch_script(tmp_path: Path, template: str | None) -> None:
    """So does one that a site made from an earlier script, which had the numbers in it."""
    own = tmp_path / "site.sh"
    own.write_text(template or "")
    of_a_site = manifest(template=str(own) if template else None)
    script = batch_script(of_a_site, RunPaths(tmp_path / "a run"))

    def status() -> int:
        environment = {"PATH": str(tmp_path), "SLURM_ARRAY_TASK_ID": "0"}
        done = subprocess.run(
            ["/bin/bash"], input=script, text=True, check=False, env=environment,
            capture_output=True,
        )  # fmt: skip
        return done.returncode

    assert status() == UNSEEN_RUN_STATUS
    write_whole(RunPaths(tmp_path / "a run").manifest, "run_id: now\n")
    assert status() == 127  # There is no srun here.
    script = script.replace(sys.executable, "/nowhere/python")
    assert status() == UNSEEN_PYTHON_STATUS
