"""How a run is stopped while it lasts, and what goes on meanwhile."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from collections.abc import Callable

from tests.end_to_end.conftest import FAST, LiveRun
from tests.support.command import aiperf
from tests.support.waiting import PATIENCE_SECONDS

from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.trial import TrialState

Start = Callable[..., LiveRun]


def trained(history: RunHistory) -> bool:
    """All replicas are training, and samples were credited."""
    training = [t for t in history.trials.values() if t.state is TrialState.TRAINING]
    return len(history.executions) > 2 and len(training) == len(history.replicas)


def test_stop_ends_a_run_in_order(live_run: Start) -> None:
    run = live_run("--serve", "127.0.0.1:0", config=FAST)
    assert run.process.stdout is not None
    run.process.stdout.readline()
    address = run.process.stdout.readline().split()[-1]
    run.wait_until(trained)
    status = f"{address}api/v1/status"
    with urllib.request.urlopen(status, timeout=PATIENCE_SECONDS) as answer:  # noqa: S310 -- our own server
        assert json.load(answer)["state"] == "running"
    during = aiperf("report", run.paths.root, "--json")
    assert json.loads(during.stdout)["final"] is False
    stopped = aiperf("stop", run.paths.root)
    assert stopped.returncode == 0, stopped.stderr
    assert stopped.stdout.splitlines()[-1].startswith("Score ")
    assert run.process.wait(PATIENCE_SECONDS) == 0
    history = run.history
    history.refresh()
    assert {r.ended for r in history.replicas.values()} == {"stopped by `aiperf stop`"}
    assert all(t.state.ended for t in history.trials.values())
    assert aiperf("verify", run.paths.root).returncode == 0


def test_a_closed_terminal_ends_a_run_as_ctrl_c_does(live_run: Start) -> None:
    run = live_run("--nodes", 1, config=FAST)
    run.wait_until(trained)
    ended = run.interrupt(signal.SIGHUP)
    assert ended.returncode == 0, ended.stderr
    assert "Score " in ended.stdout
    history = run.history
    assert history.stop_requests[0][1].reason == "interrupted by the user"
    assert all(t.state.ended for t in history.trials.values())
    assert aiperf("verify", run.paths.root).returncode == 0


def test_a_second_ctrl_c_ends_it_at_once_and_loses_no_record(live_run: Start) -> None:
    run = live_run("--nodes", 1, config=FAST)
    run.wait_until(trained)
    os.kill(run.replica_pid("r0"), signal.SIGSTOP)  # So that no orderly end is possible.
    before = {path: path.read_bytes() for path in run.paths.journals()}
    run.process.send_signal(signal.SIGINT)
    run.wait_until(lambda history: len(history.stop_requests) == 1)
    ended = run.interrupt()
    assert "Score " in ended.stdout, ended.stderr
    history = run.history
    assert [r.exit_status for r in history.replicas.values()] == [-9]
    assert all(path.read_bytes().startswith(content) for path, content in before.items())
    assert history.problems == []
    assert aiperf("verify", run.paths.root).returncode == 0


def test_a_dead_search_worker_is_replaced(live_run: Start) -> None:
    short = ["--set", "training.max_epochs=1", "--set", "training.patience=1"]
    run = live_run("--nodes", 1, *short, "--set", "rounds.warmup_epochs=[1,1,1]", config=FAST)
    run.wait_until(lambda h: bool(h.proposals))
    journal = run.paths.search_journal("r0", 0)
    pid = json.loads(journal.read_text().splitlines()[0])["event"]["pid"]
    os.kill(pid, signal.SIGKILL)
    run.wait_until(lambda _: journal.read_text().count("search_started") == 2)
    run.wait_until(lambda h: len(h.proposals) > 3)
    proposed = [line for line in journal.read_text().splitlines() if '"type":"proposed"' in line]
    names = [json.loads(line)["event"]["proposal"] for line in proposed]
    assert len(set(names)) == len(names)
