"""SLURM at the edge of its commands: what we say to it, how often, and what its words mean."""

from __future__ import annotations

import errno
import itertools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from aiperf_hpc.config import ReplicaConfig, RunConfig, SlurmConfig, validate
from aiperf_hpc.errors import (
    PREFLIGHT_STATUS,
    UNEXPECTED_STATUS,
    UNSEEN_PYTHON_STATUS,
    UNSEEN_RUN_STATUS,
    ConfigError,
    SchedulerError,
    SchedulerSilentError,
    StorageError,
    UsageError,
)
from aiperf_hpc.primary.launchers.backend import Request, backend_of, choose_launcher
from aiperf_hpc.primary.launchers.base import ReplicaState
from aiperf_hpc.primary.launchers.slurm import array_launcher, backend
from aiperf_hpc.primary.launchers.slurm.array_launcher import FORGOTTEN, ArrayLauncher
from aiperf_hpc.primary.launchers.slurm.backend import SlurmBackend
from aiperf_hpc.primary.launchers.slurm.batch_script import batch_script
from aiperf_hpc.primary.launchers.slurm.client import (
    SHORTEST_SECONDS,
    Answer,
    RateLimit,
    SlurmClient,
    run_command,
)
from aiperf_hpc.primary.launchers.slurm.jobs import (
    PHASES,
    Element,
    Nodes,
    died,
    limit_minutes,
    state_of,
)
from aiperf_hpc.primary.launchers.slurm.launcher import LONGEST_SECONDS
from aiperf_hpc.primary.launchers.slurm.resources import check_cluster, offers
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths, write_whole
from aiperf_hpc.run.storage import BackoffRetry
from aiperf_hpc.trial import JobPhase

INFINITY = float("inf")
SILENCE = Answer(
    1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
)
FORGOT = Answer(1, "", "slurm_load_jobs error: Invalid job id specified")
BENCH = Nodes("bench", True, True, "idle", 3, "gpu:h100:8(S:0-1)", INFINITY)


def manifest(nodes: int = 3, hours: float = 1.0, **slurm: object) -> RunManifest:
    values = {"dataset": {"name": "synthetic"}, "slurm": slurm}
    return RunManifest(
        run_id="now",
        nodes=nodes,
        hours=hours,
        launcher="slurm",
        versions={},
        commit=None,
        config=validate(values, "test"),
    )


class Cluster:
    """SLURM's commands as a script: answers in turn, the last one for ever."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[tuple[float, tuple[str, ...]]] = []
        self.answers: dict[str, list[Answer]] = {
            "sbatch": [Answer(0, "17\n", "")],
            "squeue": [Answer(0, "", "")],
            "scancel": [Answer(0, "", "")],
            "scontrol": [Answer(0, "", "")],
            "sacct": [Answer(1, "", "Slurm accounting storage is disabled")],
        }
        self.environment: Mapping[str, str] | None = None

    def __call__(self, command: Sequence[str], environment: Mapping[str, str] | None) -> Answer:
        self.calls.append((self.now, tuple(command)))
        if command[0] == "sbatch":
            self.environment = environment
        answers = self.answers[command[0]]
        return answers.pop(0) if len(answers) > 1 else answers[0]

    def queue(self, *lines: str) -> None:
        """Let squeue answer with these lines from now on, times where they have none."""
        told = (f"{line}|N/A|N/A" if line.count("|") == 4 else line for line in lines)
        self.answers["squeue"] = [Answer(0, "".join(f"{line}\n" for line in told), "")]

    def utc(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(0.0, seconds)

    def wait(self, seconds: float, over: Callable[[], bool]) -> None:
        if not over():
            self.sleep(seconds)

    def launcher(self, folder: Path, nodes: int = 3, launch: int = 0) -> ArrayLauncher:
        client, rate_limit = SlurmClient(self), RateLimit(self)
        return ArrayLauncher(manifest(nodes), RunPaths(folder), client, rate_limit, launch=launch)

    @property
    def gaps(self) -> list[float]:
        """Seconds from each call to the next."""
        return [after - before for (before, _), (after, _) in itertools.pairwise(self.calls)]

    def watch(self, launcher: ArrayLauncher, seconds: float) -> dict[str, ReplicaState]:
        """Ask for the states four times a second, as the controller does."""
        end = self.now + seconds
        while self.now < end:
            self.now += 0.25
            launcher.states()
        return launcher.states()

    def until(
        self, launcher: ArrayLauncher, replica: str, phase: JobPhase
    ) -> dict[str, ReplicaState]:
        """Ask until a replica is in a phase, or it takes too long."""
        for _ in range(200):
            self.now += 0.25
            if launcher.states()[replica].phase is phase:
                return launcher.states()
        raise AssertionError(f"{replica} is {launcher.states()[replica]}")

    def said(self, program: str) -> list[tuple[str, ...]]:
        return [command[1:] for _, command in self.calls if command[0] == program]


def queued(name: str, state: str = "RUNNING", code: int = 0) -> str:
    """What squeue says of an element."""
    return f"{name}|{state}|None|n{name[-1]}|{code}|N/A|N/A"


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


# The script.


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
        extra=["--nice=100", "--comment='two words'"],
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
    one = manifest(mpi="pmi2")
    ranks = ReplicaConfig(nodes=4, ranks_per_node=8)
    config = one.config.model_copy(update={"replica": ranks})
    script = batch_script(
        one.model_copy(update={"nodes": 12, "config": config}), RunPaths(tmp_path)
    )
    assert directives(script)[1:4] == ["--array=0-2", "--nodes=4", "--ntasks-per-node=8"]
    assert " --mpi=pmi2 --kill-on-bad-exit=1 " in script.splitlines()[-2]


@pytest.mark.parametrize(("collective", "mpi"), [("torch", False), ("horovod", True)])
def test_ranks_that_do_not_meet_by_mpi_are_started_without(
    collective: Literal["torch", "horovod"], mpi: bool, tmp_path: Path
) -> None:
    one = manifest()
    ranks = ReplicaConfig(ranks_per_node=8, collective=collective)
    config = one.config.model_copy(update={"replica": ranks})
    last = batch_script(one.model_copy(update={"config": config}), RunPaths(tmp_path))
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
        {"extra": ["nice"]},
        {"extra": ["--nice\nreboot"]},
        {"cpus_per_task": 0},
        {"time_margin_minutes": 2, "signal_seconds": 120},
    ],
)
def test_settings_that_slurm_would_misread_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="slurm"):
        manifest(**wrong)


def test_a_dry_run_shows_what_would_be_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


# Submission.


def test_one_submission_starts_all(cluster: Cluster, tmp_path: Path) -> None:
    launcher = cluster.launcher(tmp_path, nodes=512)
    jobs = launcher.start()
    assert cluster.said("sbatch") == [("--parsable", str(tmp_path / "primary" / "batch.sh"))]
    assert (jobs["r0"], jobs["r511"], len(jobs)) == ("17_0", "17_511", 512)
    assert (tmp_path / "replicas" / "r511").is_dir()
    assert {s.phase for s in launcher.states().values()} == {JobPhase.PENDING}
    assert len(cluster.calls) == 1


def test_the_number_of_a_cluster_of_several_is_understood(cluster: Cluster, tmp_path: Path) -> None:
    cluster.answers["sbatch"] = [Answer(0, "18;east\n", "")]
    assert cluster.launcher(tmp_path).start()["r2"] == "18_2"


def test_a_primary_within_a_job_passes_no_sizes_on(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "64")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    monkeypatch.setenv("SBATCH_ACCOUNT", "acc")
    cluster.launcher(tmp_path).start()
    assert cluster.environment is not None
    assert "SLURM_MEM_PER_NODE" not in cluster.environment
    assert cluster.environment["SLURM_CONF"] == "/etc/slurm.conf"
    assert cluster.environment["SBATCH_ACCOUNT"] == "acc"


def test_a_refusal_comes_in_slurms_words_and_ours(cluster: Cluster, tmp_path: Path) -> None:
    words = (
        "sbatch: error: Batch job submission failed: Invalid account or account/partition\n"
        "sbatch: error: second line\n"
    )
    cluster.answers["sbatch"] = [Answer(1, "", words)]
    with pytest.raises(UsageError) as caught:
        cluster.launcher(tmp_path).start()
    said = str(caught.value)
    assert "Batch job submission failed: Invalid account or account/partition; second line" in said
    assert "nothing was started" in said
    assert "\n" not in said


def test_a_job_whose_acceptance_got_lost_is_found_again(cluster: Cluster, tmp_path: Path) -> None:
    cluster.answers["sbatch"] = [Answer(1, "", "sbatch: error: Socket timed out on send/recv")]
    cluster.queue("23")
    launcher = cluster.launcher(tmp_path)
    assert launcher.start()["r1"] == "23_1"
    assert "--name=aiperf-now" in cluster.said("squeue")[0]
    cluster.queue()
    with pytest.raises(UsageError, match=r"did not take the job.*scancel --name=aiperf-now"):
        cluster.launcher(tmp_path).start()


# Watching.


@pytest.mark.parametrize("nodes", [3, 512])
def test_slurm_is_asked_at_most_every_five_seconds_and_less_when_nothing_changes(
    cluster: Cluster, tmp_path: Path, nodes: int
) -> None:
    launcher = cluster.launcher(tmp_path, nodes)
    launcher.start()
    cluster.queue(*(f"17_{n}|RUNNING|None|n{n}|0" for n in range(nodes)))
    cluster.watch(launcher, 600)
    assert min(cluster.gaps) >= SHORTEST_SECONDS
    assert cluster.gaps[-1] == pytest.approx(LONGEST_SECONDS, abs=0.3)
    assert len(cluster.calls) < 30
    assert launcher.states()["r2"] == ReplicaState(JobPhase.RUNNING, "n2")


@pytest.mark.parametrize(
    ("state", "before", "phase"),
    [
        ("PENDING", JobPhase.PENDING, JobPhase.PENDING),
        ("PENDING", JobPhase.RUNNING, JobPhase.REQUEUED),
        ("PENDING", JobPhase.REQUEUED, JobPhase.REQUEUED),
        ("PENDING", JobPhase.LOST, JobPhase.REQUEUED),
        ("REQUEUE_HOLD", JobPhase.RUNNING, JobPhase.REQUEUED),
        ("RUNNING", JobPhase.REQUEUED, JobPhase.RUNNING),
        ("COMPLETING", JobPhase.RUNNING, JobPhase.RUNNING),
        ("NODE_FAIL", JobPhase.RUNNING, JobPhase.LOST),
        ("COMPLETED", JobPhase.RUNNING, JobPhase.DONE),
        ("TIMEOUT", JobPhase.RUNNING, JobPhase.FAILED),
        ("A_STATE_OF_SLURM_30", JobPhase.RUNNING, JobPhase.RUNNING),
    ],
)
def test_what_slurms_states_mean(state: str, before: JobPhase, phase: JobPhase) -> None:
    assert state_of(Element(0, state), ReplicaState(before)).phase is phase


def test_a_failure_keeps_slurms_reason() -> None:
    running = ReplicaState(JobPhase.RUNNING)
    failed = state_of(Element(0, "FAILED", "NonZeroExitCode", "n1"), running)
    assert failed == ReplicaState(JobPhase.FAILED, "n1", "FAILED: NonZeroExitCode")
    waiting = state_of(Element(0, "PENDING", "Resources"), ReplicaState(JobPhase.PENDING))
    assert waiting.detail == "Resources"
    assert all(PHASES.values())


def test_a_controller_that_does_not_answer_makes_nothing_lost(
    cluster: Cluster, tmp_path: Path
) -> None:
    launcher = cluster.launcher(tmp_path)
    launcher.start()
    lines = [f"17_{n}|RUNNING|None|n{n}|0" for n in range(3)]
    cluster.queue(*lines)
    known = cluster.watch(launcher, 6)
    cluster.answers["squeue"] = [SILENCE]
    assert cluster.watch(launcher, 120) == known
    assert launcher.problem is not None
    assert "Unable to contact slurm controller (connect failure)" in launcher.problem
    assert len(cluster.calls) < 12
    cluster.queue(*lines)
    assert cluster.watch(launcher, 31) == known
    assert launcher.problem is None


def test_what_slurm_has_forgotten_is_lost_unless_its_end_was_seen(
    cluster: Cluster, tmp_path: Path
) -> None:
    launcher = cluster.launcher(tmp_path)
    launcher.start()
    cluster.queue("17_0|COMPLETED|None|n1|0", "17_1|RUNNING|None|n2|0", "17_2|RUNNING|None|n3|0")
    cluster.watch(launcher, 6)
    cluster.answers["squeue"] = [FORGOT]
    states = cluster.watch(launcher, 120)
    assert states["r0"].phase is JobPhase.DONE
    assert states["r1"] == ReplicaState(JobPhase.LOST, "n2", FORGOTTEN)
    assert launcher.problem is None
    assert len(cluster.said("sacct")) == 1  # It has none, and is not asked again.


def test_the_accounting_says_how_a_forgotten_one_ended(cluster: Cluster, tmp_path: Path) -> None:
    launcher = cluster.launcher(tmp_path)
    launcher.start()
    cluster.queue(*(f"17_{n}|RUNNING|None|n{n}|0" for n in range(3)))
    cluster.watch(launcher, 6)
    cluster.answers["squeue"] = [FORGOT]
    lines = (
        "17_0|COMPLETED|None|n0|0:0|100|160\n17_1|CANCELLED by 1000|None|n1|0:15|100|160\n"
        "17_2|TIMEOUT|None|n2|0:1|100|Unknown\n"
    )
    cluster.answers["sacct"] = [Answer(0, lines, "")]
    states = cluster.watch(launcher, 20)
    assert [s.phase for s in states.values()] == [JobPhase.DONE, JobPhase.FAILED, JobPhase.FAILED]
    assert states["r1"].detail == "CANCELLED"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (4021, "does not see the run directory {}; name a folder that all nodes see"),
        (UNSEEN_RUN_STATUS << 8, "does not see the run directory {}; name a folder that all"),
        (UNSEEN_PYTHON_STATUS << 8, f"does not see {sys.executable}; install the environment"),
        (PREFLIGHT_STATUS << 8, "its node is not like the others"),
        (1 << 8, None),
    ],
)
def test_a_node_that_is_not_fit_is_told_by_its_status(
    cluster: Cluster, tmp_path: Path, code: int, said: str | None
) -> None:
    launcher = cluster.launcher(tmp_path, nodes=1)
    launcher.start()
    cluster.queue(f"17_0|FAILED|JobLaunchFailure|n1|{code}")
    state = cluster.watch(launcher, 6)["r0"]
    assert state.refused == (said is not None)
    assert (said or "FAILED: JobLaunchFailure").format(tmp_path) in state.detail


EARLIER_TEMPLATE = """\
#!/bin/bash
#SBATCH --array=0-$last_replica
set -euo pipefail
[ -s $run_dir/run.yaml ] || exit 79
[ -x $python ] || exit 80
exec srun $step_options $python -m aiperf_hpc.replica $run_dir \\
  --replica "r$${SLURM_ARRAY_TASK_ID}" --launch $launch
"""


def test_slurms_times_are_those_of_jobs_that_have_or_had_a_node(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Of one that waits SLURM tells when it expects to start it; of a cancelled one, its end."""
    launcher = cluster.launcher(tmp_path)
    launcher.start()
    cluster.queue(
        "17_0|RUNNING|None|n1|0|100|160",
        "17_1|PENDING|Resources||0|100|900",
        "17_2|CANCELLED|None||0|100|170",
    )
    states = cluster.watch(launcher, 20)
    assert [s.submitted_utc for s in states.values()] == [100.0] * 3
    assert [s.started_utc for s in states.values()] == [160.0, None, None]


@pytest.mark.parametrize("template", [None, EARLIER_TEMPLATE], ids=["ours", "a site's"])
def test_the_batch_script_says_by_its_status_what_its_node_does_not_see(
    tmp_path: Path, template: str | None
) -> None:
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


def test_an_answer_that_makes_no_sense_is_no_answer(cluster: Cluster, tmp_path: Path) -> None:
    launcher = cluster.launcher(tmp_path)
    launcher.start()
    cluster.queue("what is this")
    cluster.watch(launcher, 6)
    assert launcher.problem is not None
    assert "cannot be understood" in launcher.problem


# Dying on a node that is up.

KILLED = (128 + 9) << 8


def test_a_killed_replica_is_queued_again_three_times_in_one_call_each(
    cluster: Cluster, tmp_path: Path
) -> None:
    launcher = cluster.launcher(tmp_path)
    launcher.start()
    other = "17_1|RUNNING|None|n2|0"
    for turn in (1, 2, 3):
        cluster.queue(
            f"17_0|FAILED|NonZeroExitCode|n1|{KILLED}", other, "17_2|OUT_OF_MEMORY|None|n3|9"
        )
        states = cluster.until(launcher, "r0", JobPhase.REQUEUED)
        assert states["r0"].detail == (
            f"FAILED: NonZeroExitCode: signal 9; queued again, {turn} of 3"
        )
        assert states["r1"].phase is JobPhase.RUNNING
        cluster.queue("17_0|PENDING|BeginTime||0", other, "17_2|PENDING|BeginTime||0")
        cluster.watch(launcher, 2 * SHORTEST_SECONDS)
        cluster.queue("17_0|RUNNING|None|n1|0", other, "17_2|RUNNING|None|n3|0")
        cluster.until(launcher, "r0", JobPhase.RUNNING)
    assert cluster.said("scontrol") == [("requeue", "17_0,17_2")] * 3
    cluster.queue(f"17_0|FAILED|NonZeroExitCode|n1|{KILLED}", other, "17_2|RUNNING|None|n3|0")
    assert cluster.watch(launcher, 60)["r0"].phase is JobPhase.FAILED
    assert len(cluster.said("scontrol")) == 3
    assert min(cluster.gaps) >= SHORTEST_SECONDS


def test_a_replica_that_slurm_does_not_queue_again_has_failed(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.answers["scontrol"] = [Answer(1, "", "17_0: Requested operation is disabled")]
    launcher = cluster.launcher(tmp_path, nodes=1)
    launcher.start()
    cluster.queue(f"17_0|FAILED|NonZeroExitCode|n1|{KILLED}")
    state = cluster.watch(launcher, 60)["r0"]
    assert state.phase is JobPhase.FAILED
    assert "SLURM does not run it again: scontrol: 17_0: Requested operation" in state.detail
    assert len(cluster.said("scontrol")) == 1


@pytest.mark.parametrize(
    ("element", "dead"),
    [
        (Element(0, "FAILED", status=137), True),
        (Element(0, "FAILED", signal=11), True),
        (Element(0, "FAILED", status=UNEXPECTED_STATUS), True),
        (Element(0, "FAILED", status=14), True),  # Open MPI, which could not be initialised.
        (Element(0, "FAILED", status=1), False),  # It said why.
        (Element(0, "FAILED", status=127), False),  # No srun.
        (Element(0, "FAILED", status=PREFLIGHT_STATUS), False),
        (Element(0, "FAILED", signal=53), False),
        (Element(0, "NODE_FAIL", signal=9), False),  # SLURM itself queues it again.
        (Element(0, "CANCELLED", signal=15), False),
        (Element(0, "TIMEOUT", status=0, signal=1), False),
    ],
)
def test_what_is_a_death(element: Element, dead: bool) -> None:
    assert died(element) is dead


def test_who_was_told_to_end_is_not_queued_again(cluster: Cluster, tmp_path: Path) -> None:
    launcher = cluster.launcher(tmp_path, nodes=1)
    launcher.start()
    cluster.queue("17_0|RUNNING|None|n1|0")
    cluster.watch(launcher, 6)
    launcher.ask_to_stop()
    cluster.queue(f"17_0|FAILED|NonZeroExitCode|n1|{KILLED}")
    assert cluster.watch(launcher, 60)["r0"].phase is JobPhase.FAILED
    assert cluster.said("scontrol") == []


# Going on after a primary died.


def test_a_later_launch_cancels_the_earlier_job_and_keeps_its_calls_apart(
    cluster: Cluster, tmp_path: Path
) -> None:
    launcher = cluster.launcher(tmp_path, launch=1)
    launcher.start()
    cluster.watch(launcher, 6)
    assert [command[0] for _, command in cluster.calls] == ["scancel", "sbatch", "squeue"]
    assert cluster.said("scancel") == [("--me", "--name=aiperf-now")]
    assert min(cluster.gaps) >= SHORTEST_SECONDS
    cluster.answers["scancel"] = [SILENCE]
    with pytest.raises(UsageError, match=r"earlier job cannot be cancelled.*nothing was started"):
        cluster.launcher(tmp_path, launch=2).start()


def test_on_a_full_disk_the_batch_script_is_waited_for(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a primary that is resumed there does with its records."""
    troubles = [errno.ENOSPC, errno.ENOSPC]

    def full(path: Path, content: bytes) -> None:
        if troubles:
            number = troubles.pop()
            raise OSError(number, os.strerror(number))
        write_whole(path, content)

    monkeypatch.setattr(array_launcher, "write_whole", full)
    paths, patience = RunPaths(tmp_path), BackoffRetry(lambda: False, clock=cluster)
    launcher = ArrayLauncher(
        manifest(1), paths, SlurmClient(cluster), RateLimit(cluster), retry=patience
    )
    assert launcher.start() == {"r0": "17_0"}
    assert troubles == []
    assert paths.batch_script.exists()
    troubles[:] = [errno.ENOSPC]
    with pytest.raises(StorageError, match=r"cannot write the batch script .*No space left"):
        cluster.launcher(tmp_path).start()


def test_an_array_that_is_too_large_is_refused_with_the_limit(
    cluster: Cluster, tmp_path: Path
) -> None:
    said = "sbatch: error: Batch job submission failed: Invalid job array specification"
    cluster.answers["sbatch"] = [Answer(1, "", said)]
    config = "Configuration data as of now\nMaxArraySize            = 1001\nX = 1\n"
    cluster.answers["scontrol"] = [Answer(0, config, "")]
    with pytest.raises(UsageError, match=r"1002 replicas: .* at most 1001 elements \(MaxArraySize"):
        cluster.launcher(tmp_path, nodes=1002).start()
    assert min(cluster.gaps) >= SHORTEST_SECONDS
    with pytest.raises(UsageError, match="refused the job: sbatch: Batch job submission failed"):
        cluster.launcher(tmp_path, nodes=3).start()  # For another reason, in SLURM's words.


# Ending.


def test_a_stop_cancels_what_waits_and_tells_what_runs(cluster: Cluster, tmp_path: Path) -> None:
    launcher = cluster.launcher(tmp_path)
    launcher.start()
    cluster.queue(
        "17_0|RUNNING|None|n1|0", "17_1|PENDING|Resources||0", "17_2|PENDING|Resources||0"
    )
    cluster.watch(launcher, 6)
    launcher.ask_to_stop()
    cluster.queue("17_0|COMPLETED|None|n1|0", "17_1|CANCELLED|None||0", "17_2|CANCELLED|None||0")
    states = cluster.watch(launcher, 60)
    assert cluster.said("scancel") == [("--state=PENDING", "17"), ("--signal=TERM", "17")]
    assert {s.phase for s in states.values()} == {JobPhase.DONE}
    assert states["r1"].detail == "cancelled before it started"
    assert min(cluster.gaps) >= SHORTEST_SECONDS


def test_a_kill_is_one_call_repeated_until_slurm_answers(cluster: Cluster, tmp_path: Path) -> None:
    launcher = cluster.launcher(tmp_path)
    launcher.start()
    cluster.queue(*(f"17_{n}|RUNNING|None|n{n}|0" for n in range(3)))
    cluster.watch(launcher, 6)
    cluster.answers["scancel"] = [SILENCE, SILENCE, Answer(0, "", "")]
    for _ in range(3):
        launcher.kill()
    cluster.queue(*(f"17_{n}|CANCELLED|None|n{n}|0" for n in range(3)))
    states = cluster.watch(launcher, 60)
    assert cluster.said("scancel") == [("17",)] * 3
    assert {s.phase for s in states.values()} == {JobPhase.FAILED}


def test_a_refused_request_is_not_repeated(cluster: Cluster, tmp_path: Path) -> None:
    launcher = cluster.launcher(tmp_path)
    launcher.start()
    cluster.answers["scancel"] = [Answer(1, "", "scancel: error: Kill job error: Invalid job id")]
    launcher.kill()
    cluster.watch(launcher, 60)
    assert len(cluster.said("scancel")) == 1


# Before anything starts.


@pytest.mark.parametrize(
    ("asked", "nodes", "found", "said"),
    [
        ({"partition": "nope"}, 1, [BENCH], "no partition 'nope', but bench"),
        ({}, 1, [], "no default partition; set slurm.partition, of: none"),
        ({}, 4, [BENCH], "--nodes 4: partition 'bench' has 3 nodes that can be used, of 3"),
        ({"gres": "gpu:16"}, 1, [BENCH], "slurm.gres gpu:16: 0 nodes of partition 'bench' offer"),
        ({"gres": "gpu:a100:8"}, 1, [BENCH], "its nodes offer: gpu:h100:8"),
    ],
)
def test_what_the_cluster_lacks_is_said(
    asked: dict[str, Any], nodes: int, found: list[Nodes], said: str
) -> None:
    with pytest.raises(UsageError) as caught:
        check_cluster(SlurmConfig(**asked), nodes, 1.0, found)
    assert said in str(caught.value)


def test_elements_that_may_share_a_node_have_room_by_its_accelerators() -> None:
    found = [replace(BENCH, count=2, gres="gpu:h100:8"), replace(BENCH, count=1, gres="gpu:h100:4")]
    for gres, most, said in (
        ("gpu:1", 20, "room for 20 replicas on nodes that can be used, of 3"),
        ("gpu:h100:3", 5, "room for 5 replicas"),
        ("gpu:8", 2, "2 nodes of partition 'bench' offer it"),
    ):
        shared = SlurmConfig(gres=gres, exclusive=False)
        check_cluster(shared, most, 1.0, found)
        with pytest.raises(UsageError, match=said):
            check_cluster(shared, most + 1, 1.0, found)
    for alone in (
        SlurmConfig(gres="gpu:1"),
        SlurmConfig(gres="gpu:1", exclusive=False, mode="allocation"),
        SlurmConfig(exclusive=False),
    ):
        with pytest.raises(UsageError, match="--nodes 4: partition 'bench' has 3 nodes"):
            check_cluster(alone, 4, 1.0, found)


def test_nodes_that_run_nothing_do_not_count() -> None:
    found = [
        Nodes("bench", True, True, state, 1, "", 90.0)
        for state in ("idle", "allocated", "mixed-", "idle~", "down*", "idle*", "drained", "inval")
    ]
    check_cluster(SlurmConfig(), 4, 1.0, found)
    with pytest.raises(UsageError, match="has 4 nodes that can be used, of 8"):
        check_cluster(SlurmConfig(), 5, 1.0, found)
    with pytest.raises(UsageError, match=r"is 100 minutes; partition 'bench' allows 90"):
        check_cluster(SlurmConfig(), 4, 1.5, found)
    down = [Nodes("bench", True, False, "idle", 9, "", INFINITY)]
    with pytest.raises(UsageError, match="'bench' is not up"):
        check_cluster(SlurmConfig(), 4, 1.0, down)


@pytest.mark.parametrize(
    ("gres", "asked", "fits"),
    [
        ("gpu:h100:8(S:0-1)", "gpu:8", True),
        ("gpu:h100:8(S:0,1),nvme:2", "gpu:h100:8,nvme", True),
        ("gpu:a:4,gpu:b:4", "gpu:8", True),
        ("gpu:a:4,gpu:b:4", "gpu:a:8", False),
        ("gpu:8", "gpu:h100:8", False),
        ("", "gpu", False),
        ("bandwidth:2K", "bandwidth:2048", True),
    ],
)
def test_accelerators_are_compared(gres: str, asked: str, fits: bool) -> None:
    assert offers(gres, asked) is fits


def test_time_limits_are_read() -> None:
    read = {text: limit_minutes(text) for text in ("infinite", "1-06:30", "30:00", "1:30:00")}
    assert read == {"infinite": INFINITY, "1-06:30": 1830, "30:00": 30, "1:30:00": 90}


def test_partitions_are_read(cluster: Cluster) -> None:
    out = "bench*|up|idle|3|gpu:h100:8(S:0-1)|infinite\nold|down|drained*|2|(null)|5:00\n"
    cluster.answers["sinfo"] = [Answer(0, out, "")]
    assert SlurmClient(cluster).partitions() == [
        BENCH,
        Nodes("old", False, False, "drained*", 2, "", 5.0),
    ]


def choose(asked: str, cluster: Cluster) -> str:
    config = RunConfig.model_validate({"dataset": {"name": "synthetic"}})
    with pytest.MonkeyPatch.context() as patch:
        slurm = SlurmBackend(SlurmClient(cluster), RateLimit(cluster))
        patch.setattr(backend, "BACKEND", slurm)
        return choose_launcher(Request(asked, config, 3, 3, 1.0)).launcher


def test_auto_is_slurm_where_its_client_is(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.answers["sinfo"] = [Answer(0, "bench*|up|idle|3|(null)|infinite\n", "")]
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/sbatch")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert choose("auto", cluster) == "array"
    said = "aiperf: --launcher auto: array: SLURM answers, and this is in none of its jobs\n"
    assert capsys.readouterr().err == said
    assert choose("slurm", cluster) == "array"
    assert choose("local", cluster) == "local"
    cluster.answers["sinfo"] = [SILENCE]
    with pytest.raises(
        UsageError, match=r"/usr/bin/sbatch is installed, but SLURM does not answer"
    ):
        choose("slurm", cluster)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert choose("auto", cluster) == "local"
    with pytest.raises(UsageError, match="there is no sbatch on the PATH"):
        choose("slurm", cluster)


@pytest.mark.parametrize("cores", [3, 2])
def test_auto_is_local_where_slurm_does_not_answer_unless_that_cannot_be_meant(
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    cores: int,
) -> None:
    cluster.answers["sinfo"] = [SILENCE]
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/sbatch")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    if cores >= 3:
        assert choose("auto", cluster) == "local"
        assert "SLURM does not answer" in capsys.readouterr().err
    else:
        with pytest.raises(UsageError, match="or use --launcher local"):
            choose("auto", cluster)


def test_commands_are_really_run() -> None:
    done = run_command([sys.executable, "-c", "import sys; print('a'); sys.exit(3)"], None)
    assert (done.status, done.out) == (3, "a\n")
    with pytest.raises(SchedulerSilentError, match="no-such-program is not on the PATH"):
        run_command(["no-such-program"], None)


def test_an_error_without_words_is_still_an_error(cluster: Cluster) -> None:
    cluster.answers["sinfo"] = [Answer(3, "", "")]
    with pytest.raises(SchedulerError, match="sinfo: exit status 3 without a word"):
        SlurmClient(cluster).partitions()


# More and fewer nodes while a run lasts.


def test_replicas_that_join_are_a_further_array_and_all_are_looked_at_in_one_call(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.answers["sbatch"] = [Answer(0, "17\n", ""), Answer(0, "21\n", "")]
    launcher = cluster.launcher(tmp_path, nodes=2)
    launcher.start()
    assert launcher.add(["r2", "r3", "r7"]) == {"r2": "21_2", "r3": "21_3", "r7": "21_7"}
    assert cluster.said("sbatch")[1][:2] == ("--parsable", "--array=2-3,7")
    assert RunPaths(tmp_path).replica("r7").is_dir()
    cluster.queue(queued("17_0"), queued("17_1"), queued("21_2"), queued("21_3", "PENDING"))
    states = cluster.until(launcher, "r2", JobPhase.RUNNING)
    assert [states[r].phase for r in ("r0", "r1", "r3")] == ["running", "running", "pending"]
    assert "--jobs=17,21" in cluster.said("squeue")[-1]
    launcher.ask_to_stop()
    cluster.watch(launcher, 30)
    assert cluster.said("scancel") == [
        ("--state=PENDING", "21"), ("--signal=TERM", "17"), ("--signal=TERM", "21")
    ]  # fmt: skip
    assert min(cluster.gaps) >= SHORTEST_SECONDS


def test_who_is_released_gets_the_signal_or_does_not_begin_and_is_not_run_again(
    cluster: Cluster, tmp_path: Path
) -> None:
    launcher = cluster.launcher(tmp_path, nodes=4)
    launcher.start()
    waiting = queued("17_3", "PENDING")
    cluster.queue(queued("17_0"), queued("17_1"), queued("17_2"), waiting)
    cluster.until(launcher, "r1", JobPhase.RUNNING)
    launcher.release(["r1", "r2", "r3"])
    cluster.watch(launcher, 12)
    assert cluster.said("scancel") == [
        ("--state=PENDING", "17_[1-3]"), ("--signal=TERM", "17_[1-3]")
    ]  # fmt: skip
    killed = queued("17_2", "FAILED", code=KILLED)
    cluster.queue(queued("17_0"), queued("17_1", "COMPLETED"), killed, queued("17_3", "CANCELLED"))
    states = cluster.until(launcher, "r1", JobPhase.DONE)
    assert states["r3"] == ReplicaState(JobPhase.DONE, "n3", "cancelled before it started")
    cluster.watch(launcher, 30)
    assert cluster.said("scontrol") == []
    launcher.end(["r2"])
    cluster.watch(launcher, 12)
    assert cluster.said("scancel")[-1] == ("17_[2]",)


def test_one_that_returns_is_what_its_new_element_says(cluster: Cluster, tmp_path: Path) -> None:
    cluster.answers["sbatch"] = [Answer(0, "17\n", ""), Answer(0, "21\n", "")]
    launcher = cluster.launcher(tmp_path, nodes=2)
    launcher.start()
    cluster.queue(queued("17_0"), queued("17_1", "COMPLETED"))
    cluster.until(launcher, "r1", JobPhase.DONE)
    launcher.add(["r1"])
    cluster.queue(queued("17_0"), queued("17_1", "COMPLETED"), queued("21_1"))
    assert cluster.until(launcher, "r1", JobPhase.RUNNING)["r0"].phase is JobPhase.RUNNING


def test_more_than_the_partition_has_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    cluster.answers["sinfo"] = [Answer(0, "bench*|up|idle|3|(null)|infinite\n", "")]
    launcher = cluster.launcher(tmp_path)
    launcher.check(3)
    with pytest.raises(UsageError, match=r"--nodes 4: partition 'bench' has 3 nodes"):
        launcher.check(4)
    cluster.answers["sinfo"] = [SILENCE]
    with pytest.raises(UsageError, match="--nodes 3: SLURM does not say what it has"):
        launcher.check(3)
