"""The launcher of job arrays: its calls of SLURM, their rate, and SLURM's reports."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest
from tests.primary.launchers.slurm.fake_slurm import SILENCE, ArrayCluster, manifest, queued
from tests.support.present import present

from aiperf_hpc.errors import (
    PREFLIGHT_STATUS,
    UNEXPECTED_STATUS,
    UNSEEN_PYTHON_STATUS,
    UNSEEN_RUN_STATUS,
    StorageError,
    UsageError,
)
from aiperf_hpc.primary.launchers.base import ReplicaState
from aiperf_hpc.primary.launchers.slurm import array_launcher
from aiperf_hpc.primary.launchers.slurm.array_launcher import FORGOTTEN, ArrayLauncher
from aiperf_hpc.primary.launchers.slurm.client import (
    SHORTEST_SECONDS,
    Answer,
    RateLimit,
    SlurmClient,
)
from aiperf_hpc.primary.launchers.slurm.jobs import PHASES, Element, died, state_of
from aiperf_hpc.primary.launchers.slurm.launcher import LONGEST_SECONDS
from aiperf_hpc.run.paths import RunPaths, write_whole
from aiperf_hpc.run.storage import BackoffRetry
from aiperf_hpc.trial import JobPhase

FORGOT = Answer(1, "", "slurm_load_jobs error: Invalid job id specified")


@pytest.fixture
def cluster() -> ArrayCluster:
    return ArrayCluster()


# Submission.


def test_one_submission_starts_all(cluster: ArrayCluster, tmp_path: Path) -> None:
    cluster.answers["sbatch"] = [Answer(0, "17;east\n", "")]  # With the cluster, where it has one.
    launcher = cluster.launcher(tmp_path, nodes=512)
    jobs = launcher.start()
    assert cluster.said("sbatch") == [("--parsable", str(tmp_path / "primary" / "batch.sh"))]
    assert (jobs["r0"], jobs["r511"], len(jobs)) == ("17_0", "17_511", 512)
    assert (tmp_path / "replicas" / "r511").is_dir()
    assert {s.phase for s in launcher.states().values()} == {JobPhase.PENDING}
    assert len(cluster.calls) == 1


def test_job_variables_are_not_inherited(
    cluster: ArrayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "64")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    monkeypatch.setenv("SBATCH_ACCOUNT", "acc")
    cluster.launcher(tmp_path).start()
    assert cluster.environment is not None
    assert "SLURM_MEM_PER_NODE" not in cluster.environment
    assert cluster.environment["SLURM_CONF"] == "/etc/slurm.conf"
    assert cluster.environment["SBATCH_ACCOUNT"] == "acc"


def test_a_refusal_comes_in_slurms_words_and_ours(cluster: ArrayCluster, tmp_path: Path) -> None:
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


def test_a_job_accepted_without_an_answer_is_found(cluster: ArrayCluster, tmp_path: Path) -> None:
    cluster.answers["sbatch"] = [Answer(1, "", "sbatch: error: Socket timed out on send/recv")]
    cluster.queue("23")
    launcher = cluster.launcher(tmp_path)
    assert launcher.start()["r1"] == "23_1"
    assert "--name=aiperf-now" in cluster.said("squeue")[0]
    cluster.queue()
    with pytest.raises(UsageError, match=r"did not confirm the job.*scancel --name=aiperf-now"):
        cluster.launcher(tmp_path).start()


# Watching.


@pytest.mark.parametrize("nodes", [3, 512])
def test_calls_are_rate_limited(cluster: ArrayCluster, tmp_path: Path, nodes: int) -> None:
    launcher = cluster.started(tmp_path, nodes=nodes)
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


def test_a_silent_controller_loses_nothing(cluster: ArrayCluster, tmp_path: Path) -> None:
    launcher = cluster.started(tmp_path)
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


def test_forgotten_elements_are_lost(cluster: ArrayCluster, tmp_path: Path) -> None:
    launcher = cluster.started(
        tmp_path, "17_0|COMPLETED|None|n1|0", "17_1|RUNNING|None|n2|0", "17_2|RUNNING|None|n3|0"
    )
    cluster.answers["squeue"] = [FORGOT]
    states = cluster.watch(launcher, 120)
    assert states["r0"].phase is JobPhase.DONE
    assert states["r1"] == ReplicaState(JobPhase.LOST, "n2", FORGOTTEN)
    assert launcher.problem is None
    assert len(cluster.said("sacct")) == 1  # It has none, and is not asked again.


def test_the_accounting_of_forgotten_elements(cluster: ArrayCluster, tmp_path: Path) -> None:
    launcher = cluster.started(tmp_path, *(f"17_{n}|RUNNING|None|n{n}|0" for n in range(3)))
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
        (4021, "cannot access the run directory {}; name a folder on a shared file system"),
        (UNSEEN_RUN_STATUS << 8, "cannot access the run directory {}; name a folder on a shared"),
        (UNSEEN_PYTHON_STATUS << 8, f"cannot access {sys.executable}; install the environment"),
        (PREFLIGHT_STATUS << 8, "its node differs from the others"),
        (1 << 8, None),
    ],
)
def test_unfit_nodes_by_exit_status(
    cluster: ArrayCluster, tmp_path: Path, code: int, said: str | None
) -> None:
    launcher = cluster.started(tmp_path, nodes=1)
    cluster.queue(f"17_0|FAILED|JobLaunchFailure|n1|{code}")
    state = cluster.watch(launcher, 6)["r0"]
    assert state.refused == (said is not None)
    assert (said or "FAILED: JobLaunchFailure").format(tmp_path) in state.detail


def test_submission_and_start_times(cluster: ArrayCluster, tmp_path: Path) -> None:
    """Of one that waits SLURM tells when it expects to start it; of a cancelled one, its end."""
    launcher = cluster.started(tmp_path)
    cluster.queue(
        "17_0|RUNNING|None|n1|0|100|160",
        "17_1|PENDING|Resources||0|100|900",
        "17_2|CANCELLED|None||0|100|170",
    )
    states = cluster.watch(launcher, 20)
    assert [s.submitted_utc for s in states.values()] == [100.0] * 3
    assert [s.started_utc for s in states.values()] == [160.0, None, None]


def test_an_answer_that_makes_no_sense_is_no_answer(cluster: ArrayCluster, tmp_path: Path) -> None:
    launcher = cluster.started(tmp_path, "what is this")
    assert "printed an unexpected line: what is this" in present(launcher.problem)


# Dying on a node that is up.

KILLED = (128 + 9) << 8


def test_a_killed_replica_is_requeued_three_times(cluster: ArrayCluster, tmp_path: Path) -> None:
    launcher = cluster.started(tmp_path)
    other = "17_1|RUNNING|None|n2|0"
    for turn in (1, 2, 3):
        cluster.queue(
            f"17_0|FAILED|NonZeroExitCode|n1|{KILLED}", other, "17_2|OUT_OF_MEMORY|None|n3|9"
        )
        states = cluster.until(launcher, "r0", JobPhase.REQUEUED)
        assert states["r0"].detail == f"FAILED: NonZeroExitCode: signal 9; requeued, {turn} of 3"
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


def test_a_refused_requeue_is_a_failure(cluster: ArrayCluster, tmp_path: Path) -> None:
    cluster.answers["scontrol"] = [Answer(1, "", "17_0: Requested operation is disabled")]
    launcher = cluster.started(tmp_path, nodes=1)
    cluster.queue(f"17_0|FAILED|NonZeroExitCode|n1|{KILLED}")
    state = cluster.watch(launcher, 60)["r0"]
    assert state.phase is JobPhase.FAILED
    assert "SLURM does not requeue it: scontrol: 17_0: Requested operation" in state.detail
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


def test_who_was_told_to_end_is_not_queued_again(cluster: ArrayCluster, tmp_path: Path) -> None:
    launcher = cluster.started(tmp_path, "17_0|RUNNING|None|n1|0", nodes=1)
    launcher.ask_to_stop()
    cluster.queue(f"17_0|FAILED|NonZeroExitCode|n1|{KILLED}")
    assert cluster.watch(launcher, 60)["r0"].phase is JobPhase.FAILED
    assert cluster.said("scontrol") == []


# Going on after a primary died.


def test_a_later_launch_cancels_the_earlier_job(cluster: ArrayCluster, tmp_path: Path) -> None:
    launcher = cluster.started(tmp_path, launch=1)
    cluster.watch(launcher, 6)
    assert [command[0] for _, command in cluster.calls] == ["scancel", "sbatch", "squeue"]
    assert cluster.said("scancel") == [("--me", "--name=aiperf-now")]
    assert min(cluster.gaps) >= SHORTEST_SECONDS
    cluster.answers["scancel"] = [SILENCE]
    with pytest.raises(UsageError, match=r"earlier job cannot be cancelled.*nothing was started"):
        cluster.launcher(tmp_path, launch=2).start()


def test_the_batch_script_waits_for_disk_space(
    cluster: ArrayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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


def test_a_too_large_array_is_refused(cluster: ArrayCluster, tmp_path: Path) -> None:
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


def test_a_stop_cancels_waiting_elements(cluster: ArrayCluster, tmp_path: Path) -> None:
    launcher = cluster.started(tmp_path)
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


def test_a_kill_is_repeated_until_slurm_answers(cluster: ArrayCluster, tmp_path: Path) -> None:
    launcher = cluster.started(tmp_path, *(f"17_{n}|RUNNING|None|n{n}|0" for n in range(3)))
    cluster.answers["scancel"] = [SILENCE, SILENCE, Answer(0, "", "")]
    for _ in range(3):
        launcher.kill()
    cluster.queue(*(f"17_{n}|CANCELLED|None|n{n}|0" for n in range(3)))
    states = cluster.watch(launcher, 60)
    assert cluster.said("scancel") == [("17",)] * 3
    assert {s.phase for s in states.values()} == {JobPhase.FAILED}


def test_a_refused_request_is_not_repeated(cluster: ArrayCluster, tmp_path: Path) -> None:
    launcher = cluster.started(tmp_path)
    cluster.answers["scancel"] = [Answer(1, "", "scancel: error: Kill job error: Invalid job id")]
    launcher.kill()
    cluster.watch(launcher, 60)
    assert len(cluster.said("scancel")) == 1


# More and fewer nodes while a run lasts.


def test_joining_replicas_are_a_further_array(cluster: ArrayCluster, tmp_path: Path) -> None:
    cluster.answers["sbatch"] = [Answer(0, "17\n", ""), Answer(0, "21\n", "")]
    launcher = cluster.started(tmp_path, nodes=2)
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


def test_released_replicas_are_not_run_again(cluster: ArrayCluster, tmp_path: Path) -> None:
    launcher = cluster.started(tmp_path, nodes=4)
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


def test_a_returning_replica_is_its_new_element(cluster: ArrayCluster, tmp_path: Path) -> None:
    cluster.answers["sbatch"] = [Answer(0, "17\n", ""), Answer(0, "21\n", "")]
    launcher = cluster.started(tmp_path, nodes=2)
    cluster.queue(queued("17_0"), queued("17_1", "COMPLETED"))
    cluster.until(launcher, "r1", JobPhase.DONE)
    launcher.add(["r1"])
    cluster.queue(queued("17_0"), queued("17_1", "COMPLETED"), queued("21_1"))
    assert cluster.until(launcher, "r1", JobPhase.RUNNING)["r0"].phase is JobPhase.RUNNING


def test_more_than_the_partition_has_is_refused(cluster: ArrayCluster, tmp_path: Path) -> None:
    cluster.answers["sinfo"] = [Answer(0, "bench*|up|idle|3|(null)|infinite\n", "")]
    launcher = cluster.launcher(tmp_path)
    launcher.check(3)
    with pytest.raises(UsageError, match=r"--nodes 4: partition 'bench' has 3 nodes"):
        launcher.check(4)
    cluster.answers["sinfo"] = [SILENCE]
    with pytest.raises(UsageError, match="--nodes 3: SLURM does not report its nodes"):
        launcher.check(3)
