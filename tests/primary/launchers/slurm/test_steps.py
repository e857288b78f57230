"""srun's command lines, and how steps end."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.primary.launchers.slurm.fake_slurm import BUSY, Srun, StepCluster, manifest, runs_on
from tests.support.present import present

from aiperf_hpc.errors import UNSEEN_RUN_STATUS, SchedulerError, UsageError
from aiperf_hpc.primary.launchers.base import MOST_RESTARTS, STOP_SIGNAL, ReplicaState, WaitLimit
from aiperf_hpc.primary.launchers.slurm.allocation import (
    CurrentAllocation,
    check_allocation,
    release_jobs,
)
from aiperf_hpc.primary.launchers.slurm.client import Answer, SlurmClient
from aiperf_hpc.primary.launchers.slurm.jobs import Job
from aiperf_hpc.primary.launchers.slurm.step_launcher import KILL_SECONDS, StepLauncher
from aiperf_hpc.primary.launchers.slurm.steps import Attempt, Place, step_command
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.trial import JobPhase


@pytest.fixture
def cluster(tmp_path: Path) -> StepCluster:
    return StepCluster(tmp_path)


def test_each_replica_is_a_step_on_a_node_of_its_own(cluster: StepCluster) -> None:
    launcher = cluster.launcher()
    assert launcher.start() == {"r0": "17", "r1": "17"}
    assert [s.option("nodelist") for s in cluster.sruns] == ["n1", "n2"]
    (tried,) = cluster.said("srun")
    assert tried[-1].startswith('echo "$SLURMD_NODENAME"')
    assert "--nodelist=n1,n2" in tried
    states = launcher.states()
    assert states["r1"] == runs_on("n2")
    cluster.now += 600.0
    launcher.states()
    assert len(cluster.said("squeue")) == 1  # Steps that run are asked nobody about.


def test_what_srun_is_told(tmp_path: Path) -> None:
    ranks: dict[str, object] = {"nodes": 2, "ranks_per_node": 4, "collective": "mpi"}
    run = manifest(4, replica=ranks, gres="gpu:4", cpus_per_task=8)
    command = step_command(run, RunPaths(tmp_path), Attempt("r1", 2, 3), Place("17", ("n3", "n4")))
    assert command[: command.index("/bin/sh")] == [
        "srun", "--jobid=17", "--nodes=2", "--ntasks=8", "--ntasks-per-node=4",
        "--nodelist=n3,n4", "--input=none", "--cpu-bind=none", "--gres=gpu:4",
        "--cpus-per-task=8", "--mpi=pmix", "--kill-on-bad-exit=1", "--job-name=aiperf-now-r1",
    ]  # fmt: skip
    assert command[-6:] == ["--replica", "r1", "--launch", "2", "--restart", "3"]


def test_ranks_of_torch_meet_on_the_first_of_their_nodes(tmp_path: Path) -> None:
    run = manifest(4, replica={"nodes": 2, "ranks_per_node": 1, "collective": "torch"})
    place = Place("17", ("n3", "n4"))
    command = step_command(run, RunPaths(tmp_path), Attempt("r1", 0, 0), place, "host3")
    assert "--export=ALL,MASTER_ADDR=host3" in command


def test_a_dead_replica_is_restarted_on_its_node(cluster: StepCluster) -> None:
    launcher = cluster.started()
    for restart in range(1, MOST_RESTARTS + 1):
        cluster.sruns[-1].end(137, "srun: error: n2: task 0: Killed\n")
        state = cluster.looked(launcher)["r1"]
        detail = f"ended with status 137; started again, {restart} of {MOST_RESTARTS}"
        assert state == ReplicaState(JobPhase.REQUEUED, "n2", detail)
        assert cluster.sruns[-1].option("nodelist") == "n2"
        assert cluster.sruns[-1].command[-1] == str(restart)
        assert launcher.states()["r1"].phase is JobPhase.RUNNING
    cluster.sruns[-1].end(137)
    state = cluster.looked(launcher)["r1"]
    assert (state.phase, state.status) == (JobPhase.FAILED, 137)
    assert launcher.states()["r0"].phase is JobPhase.RUNNING


def blocked(cluster: StepCluster) -> tuple[StepLauncher, Srun]:
    """Return a launcher, and the srun of r1 that waits for a step which has ended."""
    launcher = cluster.started()
    cluster.sruns[-1].end(137, "srun: error: n2: task 0: Killed\n")
    cluster.looked(launcher)
    cluster.sruns[-1].say(BUSY)
    cluster.old_steps = "17.0|aiperf-now-r0|n1\n17.1|aiperf-now-r1|n2\n17.TBD|aiperf-now-r1|\n"
    return launcher, cluster.sruns[-1]


def test_a_stale_step_is_cancelled(cluster: StepCluster) -> None:
    launcher, again = blocked(cluster)
    asked = len(cluster.calls)
    cluster.looked(launcher)
    said = launcher.states()
    assert said["r1"].phase is JobPhase.REQUEUED
    assert "still reports an ended step as running" in said["r1"].detail
    assert said["r0"].phase is JobPhase.RUNNING
    cluster.looked(launcher)
    assert cluster.said("scancel") == [("17.1",)]
    again.say("srun: Step created for job 17\n")
    cluster.looked(launcher)
    assert launcher.states()["r1"].phase is JobPhase.RUNNING
    times = [at for at, _ in cluster.calls[asked:]]
    assert all(later - at >= 5.0 for at, later in zip(times, times[1:], strict=False))


def test_where_nothing_ends_such_a_step_the_next_one_starts_beside_it(cluster: StepCluster) -> None:
    cluster.stale = True
    launcher, waits = blocked(cluster)
    for _ in range(3):  # It is found, cancelled, and still there.
        cluster.looked(launcher)
    assert cluster.said("scancel") == [("17.1",)]
    launcher.states()
    beside = cluster.sruns[-1]
    assert waits.signals == [signal.SIGKILL]
    assert beside.option("nodelist") == "n2"
    assert "--overlap" in beside.command
    assert beside.command[-4:] == ["--launch", "0", "--restart", "2"]
    assert launcher.states()["r1"].phase is JobPhase.RUNNING
    beside.end(137)
    cluster.looked(launcher)
    assert len(cluster.sruns) == 5  # Of its deaths it has had two.


def test_a_node_that_fails_ends_its_replica_which_goes_on_on_a_spare(cluster: StepCluster) -> None:
    launcher = cluster.started()
    cluster.jobs["17"] = ("RUNNING", ["n1", "n3"])
    cluster.sruns[1].end(0, "last line of the replica\nsrun: error: Node failure on n2\n")
    state = cluster.looked(launcher)["r1"]
    assert state.phase is JobPhase.REQUEUED
    assert state.detail == "n2 left the allocation: Node failure on n2; restarted on n3"
    assert cluster.sruns[-1].option("nodelist") == "n3"
    assert cluster.sruns[-1].command[-1] == "1"


def test_without_a_spare_it_is_lost_and_the_others_go_on(cluster: StepCluster) -> None:
    launcher = cluster.started(manifest(3))
    cluster.jobs["17"] = ("RUNNING", ["n1", "n3"])
    cluster.sruns[1].end(0, "srun: error: Node failure on n2\n")
    states = cluster.looked(launcher)
    assert [state.phase for state in states.values()] == [
        JobPhase.RUNNING, JobPhase.LOST, JobPhase.RUNNING,
    ]  # fmt: skip
    cluster.sruns[0].end(0)
    cluster.sruns[2].end(0)
    launcher.states()
    cluster.now += 600.0
    assert launcher.states()["r0"].phase is JobPhase.DONE


def test_a_node_that_slurm_has_not_given_up_is_tried_for_as_long(cluster: StepCluster) -> None:
    launcher = cluster.started()
    for _ in range(MOST_RESTARTS + 1):
        words = "srun: error: Task launch for StepId=17.1 failed on node n2: Communication\n"
        cluster.sruns[-1].end(233, words)
        assert cluster.looked(launcher)["r1"].phase is JobPhase.REQUEUED
        assert cluster.sruns[-1].option("nodelist") == "n2"


def test_when_the_job_is_over_so_are_its_steps(cluster: StepCluster) -> None:
    launcher = cluster.started()
    cluster.jobs["17"] = ("TIMEOUT", [])
    cluster.sruns[0].end(143)
    state = cluster.looked(launcher)["r0"]
    assert state.phase is JobPhase.FAILED
    assert state.detail == "ended with status 143; the allocation 17 is TIMEOUT"


@pytest.mark.parametrize(
    ("status", "words", "said"),
    [
        (UNSEEN_RUN_STATUS, "", "cannot access the run directory"),
        (1, "srun: error: Unable to create step for job 17: Invalid gres\n", "Invalid gres"),
    ],
)
def test_unfit_nodes(cluster: StepCluster, status: int, words: str, said: str) -> None:
    launcher = cluster.started()
    cluster.sruns[0].end(status, words)
    state = cluster.looked(launcher)["r0"]
    assert (state.phase, state.refused) == (JobPhase.FAILED, True)
    assert said in state.detail


def test_a_step_that_is_refused_starts_nothing(cluster: StepCluster) -> None:
    words = "srun: error: Unable to create step for job 17: Requested nodes are busy"
    cluster.trial = Answer(1, "", words)
    with pytest.raises(UsageError, match="job 17 refused a step: srun: .* nodes are busy"):
        cluster.launcher().start()
    assert cluster.sruns == []


def test_a_stop_is_asked_for_by_signal_and_a_kill_is_srun_s(cluster: StepCluster) -> None:
    launcher = cluster.started()
    launcher.ask_to_stop()
    assert cluster.sruns[0].signals == [signal.SIGUSR1]
    cluster.sruns[0].end(0)
    assert launcher.states()["r0"].phase is JobPhase.DONE
    launcher.kill()
    cluster.now += KILL_SECONDS
    assert cluster.sruns[1].signals == [signal.SIGUSR1, signal.SIGUSR1, signal.SIGTERM]
    assert launcher.states()["r1"] == ReplicaState(
        JobPhase.FAILED, "n2", "ended with status 143", status=143
    )
    assert len(cluster.said("squeue")) == 1


def test_a_resumed_run_ends_the_steps_of_its_earlier_primary(cluster: StepCluster) -> None:
    cluster.old_steps = (
        "17.0|bash|n1\n17.1|aiperf-now-r0|n1\n17.2|aiperf-other-r0|n2\n17.3|aiperf-now-r1|n2\n"
    )
    cluster.started(launch=1)
    assert cluster.said("scancel") == [("17.1", "17.3")]
    assert cluster.sruns[0].command[-4:] == ["--launch", "1", "--restart", "0"]
    asked = [at for at, command in cluster.calls if command[0] != "srun"]
    assert asked == [0.0, 5.0, 10.0, 15.0]
    assert "--overlap" not in cluster.sruns[0].command


def test_a_resumed_run_starts_beside_steps_that_nothing_ends(cluster: StepCluster) -> None:
    cluster.stale = True
    cluster.old_steps = "17.1|aiperf-now-r0|n1\n17.TBD|aiperf-now-r1|\n"
    cluster.started(launch=1)
    assert cluster.said("scancel") == [("17.1",)]
    assert [each.option("nodelist") for each in cluster.sruns] == ["n1", "n2"]
    assert ["--overlap" in each.command for each in cluster.sruns] == [True, False]
    (trial,) = cluster.said("srun")
    assert "--overlap" in trial
    assert cluster.now >= 20.0


def test_a_heterogeneous_job_gives_the_nodes_of_its_components(cluster: StepCluster) -> None:
    cluster.jobs = {"17+1": ("RUNNING", ["m1", "m2"]), "17+0": ("RUNNING", ["n1"])}
    cluster.started(manifest(3))
    assert {s.option("jobid") for s in cluster.sruns} == {"17"}
    places = [(s.option("het-group"), s.option("nodelist")) for s in cluster.sruns]
    assert places == [("0", "n1"), ("1", "m1"), ("1", "m2")]
    assert len(cluster.said("srun")) == 2  # Each component is tried.


TWO = Job("17", "RUNNING", 7200.0, ("n1", "n2"))


@pytest.mark.parametrize(
    ("nodes", "hours", "job", "said"),
    [
        (3, 1.0, TWO, "--nodes 3: the allocation 17 has 2"),
        (2, 2.0, TWO, r"there is time for --hours 1\.983$"),
        (2, 1.0, Job("17", "COMPLETED"), "no longer knows the job in SLURM_JOB_ID"),
    ],
)
def test_what_an_allocation_lacks(nodes: int, hours: float, job: Job, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check_allocation([job], nodes, hours, 0.0)


def test_an_allocation_that_is_enough() -> None:
    check_allocation([TWO], 2, 1.9, 0.0)
    with pytest.raises(UsageError, match="SLURM_JOB_ID is not set"):
        CurrentAllocation(SlurmClient(), None)


# A job of the run's own.


def test_an_allocation_is_one_job_which_no_shell_holds(cluster: StepCluster) -> None:
    launcher = cluster.allocating(
        manifest(2, partition="bench", extra_directives=["--comment='two words'"])
    )
    assert launcher.start() == {"r0": "17", "r1": "17"}
    (asked,) = cluster.said("salloc")
    assert asked == (
        "--no-shell", "--no-kill", "--job-name=aiperf-now", "--nodes=2", "--ntasks-per-node=1",
        "--time=70", "--signal=TERM@120", "--partition=bench", "--exclusive", "--comment=two words",
    )  # fmt: skip
    assert launcher.wait_limit == WaitLimit(420.0, "slurm.time_margin_minutes")


def test_replicas_wait_for_the_allocation(
    cluster: StepCluster,
) -> None:
    cluster.jobs["17"] = ("PENDING", [])
    launcher = cluster.allocating()
    launcher.start()
    assert cluster.looked(launcher)["r0"] == ReplicaState(JobPhase.PENDING, submitted_utc=0.0)
    assert cluster.sruns == []
    cluster.jobs["17"] = ("RUNNING", ["n1", "n2"])
    calls = len(cluster.said("squeue"))
    cluster.sallocs[0].end(0)
    launcher.states()  # At once: the step that tries the nodes tells what they are called.
    assert len(cluster.said("squeue")) == calls
    assert [s.option("nodelist") for s in cluster.sruns] == ["n1", "n2"]
    cluster.looked(launcher)
    assert launcher.states()["r1"] == runs_on("n2")
    looks = len(cluster.said("squeue"))
    cluster.now += 600.0
    launcher.states()
    assert len(cluster.said("squeue")) == looks
    launcher.close()
    assert cluster.said("scancel") == [("--me", "--name=aiperf-now")]


@pytest.mark.parametrize(
    ("says", "said"),
    [
        (
            "salloc: error: Job submit failed: Invalid qos\n",
            "SLURM refused the job: .*qos",
        ),
        (
            "salloc: error: Unable to contact slurm controller\n",
            "did not confirm .*scancel --name=",
        ),
    ],
)
def test_an_allocation_that_slurm_refuses(cluster: StepCluster, says: str, said: str) -> None:
    cluster.says, cluster.salloc_status = says, 1
    with pytest.raises(UsageError, match=said):
        cluster.allocating().start()


def test_another_node_is_asked_for_in_the_place_of_one_that_failed(cluster: StepCluster) -> None:
    launcher = cluster.granted()
    cluster.jobs["17"] = ("RUNNING", ["n1"])
    cluster.sruns[1].end(0, "srun: error: Node failure on n2\n")
    state = cluster.looked(launcher)["r1"]
    assert (state.phase, state.detail) == (
        JobPhase.REQUEUED, "n2 left the allocation: Node failure on n2",
    )  # fmt: skip
    cluster.now += 60.0
    launcher.states()
    assert cluster.said("salloc")[1][3:6] == ("--nodes=1", "--ntasks-per-node=1", "--time=70")
    cluster.now += 60.0
    launcher.states()
    assert len(cluster.sallocs) == 2  # No second one for the same replica.
    cluster.jobs["18"] = ("RUNNING", ["n3"])
    cluster.sallocs[1].end(0)
    cluster.trial = Answer(0, "n3 host\n", "")
    assert launcher.states()["r1"].detail.endswith("; restarted on n3")
    assert cluster.sruns[-1].option("jobid") == "18"
    assert cluster.sruns[-1].command[-1] == "1"


def test_a_step_that_comes_too_late_for_its_job_gets_another_node(cluster: StepCluster) -> None:
    launcher = cluster.grants()
    launcher.states()
    cluster.jobs = {"17": ("COMPLETED", ["n1", "n2"]), "18": ("RUNNING", ["n3"])}
    cluster.sruns[1].end(1, "srun: error: Slurm job 17 has expired\n")
    launcher.states()
    cluster.now += 60.0
    state = launcher.states()["r1"]
    assert state.phase is JobPhase.REQUEUED
    assert state.detail.endswith("Slurm job 17 has expired; restarted on n3")


@contextmanager
def waiting_srun(name: str) -> Iterator[subprocess.Popen[bytes]]:
    script = "print(flush=True); import time; time.sleep(600)"
    command = ["srun", "-c", script, f"--job-name={name}"]
    with subprocess.Popen(command, executable=sys.executable, stdout=subprocess.PIPE) as process:
        present(process.stdout).readline()  # Until then it has the command line of this process.
        try:
            yield process
        finally:
            process.kill()


def test_sruns_of_an_earlier_primary_that_wait_for_a_step_are_ended(cluster: StepCluster) -> None:
    with waiting_srun("aiperf-now-r1") as own, waiting_srun("aiperf-other-r1") as other:
        cluster.launcher(launch=1).start()
        assert own.wait(60) == -signal.SIGKILL
        assert other.poll() is None


def test_a_resumed_run_takes_the_job_of_its_earlier_primary(cluster: StepCluster) -> None:
    launcher = cluster.allocating(launch=1)
    assert launcher.start() == {"r0": "17", "r1": "17"}
    assert cluster.sallocs == []
    assert [s.option("nodelist") for s in cluster.sruns] == ["n1", "n2"]


def test_a_resumed_run_waits_for_nodes_that_are_still_busy(cluster: StepCluster) -> None:
    busy = "srun: error: Unable to create step for job 17: Requested nodes are busy\n"
    cluster.trial = Answer(1, "", busy)
    launcher = cluster.allocating(launch=1)
    launcher.start()
    assert launcher.problem is not None
    assert "Requested nodes are busy" in launcher.problem
    assert launcher.states()["r0"].phase is JobPhase.PENDING
    cluster.trial = None
    cluster.looked(launcher)
    assert launcher.states()["r0"].phase is JobPhase.RUNNING
    assert launcher.problem is None


def test_a_resumed_run_whose_job_is_gone_asks_for_another(cluster: StepCluster) -> None:
    cluster.jobs = {"16": ("TIMEOUT", [])}
    launcher = cluster.allocating(launch=1)
    assert launcher.start() == {"r0": "17", "r1": "17"}
    assert len(cluster.sallocs) == 1


def test_an_allocation_that_is_cancelled_while_it_waits_is_the_end(cluster: StepCluster) -> None:
    cluster.jobs["17"] = ("CANCELLED", [])
    launcher = cluster.allocating()
    launcher.start()
    cluster.sallocs[0].end(1)
    state = cluster.looked(launcher)["r0"]
    assert state == ReplicaState(JobPhase.FAILED, detail="the allocation 17 is CANCELLED")


def test_a_stop_before_the_allocation_is_granted(cluster: StepCluster) -> None:
    launcher = cluster.allocating()
    launcher.start()
    launcher.ask_to_stop()
    assert {s.phase for s in launcher.states().values()} == {JobPhase.DONE}


def test_a_fresh_allocation_that_refuses_steps_ends_the_run(cluster: StepCluster) -> None:
    launcher = cluster.grants()
    cluster.trial = Answer(1, "", "srun: error: Invalid MPI type 'nosuch'")
    with pytest.raises(UsageError, match="job 17 refused a step: srun: Invalid MPI type"):
        launcher.states()


def test_silence_at_the_grant_is_retried(cluster: StepCluster) -> None:
    launcher = cluster.grants()
    cluster.trial = Answer(1, "", "srun: error: Unable to contact slurm controller")
    assert launcher.states()["r0"].phase is JobPhase.PENDING
    assert launcher.problem == "srun: Unable to contact slurm controller"
    cluster.trial = None
    assert cluster.looked(launcher)["r0"].phase is not JobPhase.FAILED
    assert launcher.states()["r1"] == runs_on("n2")
    assert launcher.problem is None


def test_the_nodes_of_a_dead_primary_are_given_back(cluster: StepCluster) -> None:
    assert release_jobs(manifest(2), SlurmClient(cluster)) is None
    assert cluster.said("scancel") == [("--me", "--name=aiperf-now")]
    silent = SlurmClient(lambda *_: Answer(1, "", "scancel: error: Connection refused"))
    problem = present(release_jobs(manifest(2), silent))
    assert problem.endswith("scancel --name=aiperf-now")


@pytest.mark.parametrize(
    ("says", "refused"),
    [
        ("Kill job error on job step id 7.2: Invalid job id specified", False),
        ("Kill job error on job id 7: Job/step already completing or completed", False),
        ("Kill job error on job step id 7.2: Access/permission denied", True),
    ],
)
def test_what_ended_before_it_was_cancelled_needs_no_end(says: str, refused: bool) -> None:
    gone = "scancel: error: Kill job error on job step id 7.1: Invalid job id specified\n"
    held = SlurmClient(lambda *_: Answer(1, "", f"{gone}scancel: error: {says}\n"))
    if not refused:
        held.cancel("7.1", "7.2")
        return
    with pytest.raises(SchedulerError, match="permission denied"):
        held.cancel("7.1", "7.2")


def granted(cluster: StepCluster, job: str, node: str) -> None:
    """Have SLURM give the job that is waited for last."""
    cluster.jobs[job] = ("RUNNING", [node])
    cluster.trial = Answer(0, f"{node} host\n", "")
    cluster.sallocs[-1].end(0)


def test_nodes_are_added_and_given_back(cluster: StepCluster) -> None:
    launcher = cluster.granted()
    assert launcher.add(["r2"]) == {"r2": "aiperf-now"}
    assert cluster.looked(launcher)["r2"].phase is JobPhase.PENDING
    granted(cluster, "18", "n3")
    cluster.looked(launcher)
    assert launcher.states()["r2"].node == "n3"
    launcher.release(["r2"])
    assert [s.signals for s in cluster.sruns] == [[], [], [STOP_SIGNAL]]
    launcher.end(["r2"])
    launcher.end(["r2"])
    assert cluster.sruns[2].signals[1:] == [signal.SIGTERM, signal.SIGKILL]
    cluster.sruns[2].end(137)
    assert cluster.looked(launcher)["r2"].phase is JobPhase.FAILED  # And is not started again.
    assert cluster.said("scancel") == [("18",)]
    cluster.jobs["18"] = ("CANCELLED", [])
    launcher.release(["r1"])
    cluster.sruns[1].end(0)
    assert cluster.looked(launcher)["r1"].phase is JobPhase.DONE
    assert launcher.add(["r1"]) == {"r1": "17"}  # Its node is still there.
    assert cluster.sruns[-1].option("nodelist") == "n2"
    assert len(cluster.said("scancel")) == 1


def test_who_leaves_while_it_waits_gives_back_what_was_asked_for(cluster: StepCluster) -> None:
    launcher = cluster.granted()
    launcher.add(["r2"])
    cluster.jobs["18"] = ("PENDING", [])
    for _ in range(2):
        cluster.looked(launcher)
    launcher.release(["r2"])
    state = cluster.looked(launcher)["r2"]
    assert (state.phase, state.detail) == (JobPhase.DONE, "released while it waited for nodes")
    assert cluster.said("scancel") == [("18",)]


def test_within_an_allocation_a_run_grows_onto_its_free_nodes_alone(cluster: StepCluster) -> None:
    launcher = cluster.started()
    with pytest.raises(UsageError, match="--nodes 4: the allocation has 3 nodes"):
        launcher.check(4)
    assert launcher.add(["r2"]) == {"r2": "17"}
    with pytest.raises(UsageError, match="the allocation has no free nodes for them"):
        launcher.add(["r3"])
    assert "r3" not in launcher.states()
