"""One look at a run for many who ask."""

from __future__ import annotations

import io
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.support.clock import Clock
from tests.support.run_factory import Plan, Worker, write_run
from tests.support.waiting import PATIENCE_SECONDS, until

from aiperf_hpc.errors import JournalError
from aiperf_hpc.results.terminal import progress as progress_module
from aiperf_hpc.results.terminal.progress import ProgressDisplay
from aiperf_hpc.results.views.cached_view import COST_FACTOR, MOST_SECONDS, CachedView, rest_after
from aiperf_hpc.results.views.run_view import RunStatus, RunView
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.records import ReplicaEnded, SearchFailed


class Slow(RunView):
    """A view whose reading takes a time, on the clock, and counts."""

    clock: Clock
    reads = 0
    takes = 0.0

    def refresh(self) -> None:
        self.reads += 1
        self.clock.now += self.takes
        super().refresh()


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return write_run(tmp_path, Plan(replicas=1, ended=False))


@pytest.fixture
def view(paths: RunPaths) -> Slow:
    view = Slow(paths)
    view.clock = Clock()
    return view


def end(paths: RunPaths) -> None:
    with Worker(paths, "r0", RunView(paths).manifest.config) as worker:
        worker.write(ReplicaEnded(reason="asked to stop"))


def state(status: RunStatus) -> str:
    return status.replicas[0].state


def test_the_rest_is_in_proportion_to_the_cost_within_its_limits() -> None:
    assert rest_after(0.0, 1.0) == 1.0
    assert rest_after(0.2, 1.0) == 0.2 * COST_FACTOR
    assert rest_after(1e3, 1.0) == MOST_SECONDS


def test_an_answer_that_took_long_is_given_longer(view: Slow) -> None:
    view.takes = 0.25
    live = CachedView(view, clock=view.clock.monotonic)
    first = live.ask(RunView.status)
    view.clock.now += 0.25 * COST_FACTOR - 0.5
    assert live.ask(RunView.status) is first
    view.clock.now += 1.0
    assert live.ask(RunView.status) is not first
    assert view.reads == 2


def test_a_text_is_the_answer_as_json_with_its_age(view: Slow) -> None:
    live = CachedView(view, clock=view.clock.monotonic)
    assert live.text_at_hand(RunView.status) is None
    said = live.text(RunView.status)
    assert RunStatus.model_validate_json(said.body) == live.ask(RunView.status)
    view.clock.now += 0.5
    assert live.text_at_hand(RunView.status) == (said.body, 0.5)
    view.clock.now += 0.6
    assert live.text_at_hand(RunView.status) is None


def test_what_is_there_is_given_while_another_thread_reads(view: Slow, paths: RunPaths) -> None:
    """It must not be the age of an answer that makes everybody wait."""
    live = CachedView(view, clock=view.clock.monotonic)
    live.text(RunView.status)
    before = live.text_at_hand(RunView.status)
    assert before is not None
    end(paths)
    view.clock.now += 0.9
    reading, go_on = threading.Event(), threading.Event()
    refresh = view.refresh

    def slowly() -> None:
        reading.set()
        assert go_on.wait(PATIENCE_SECONDS)
        refresh()

    view.refresh = slowly  # type: ignore[method-assign]
    thread = threading.Thread(target=live._renew)
    thread.start()
    assert reading.wait(PATIENCE_SECONDS)
    view.clock.now += 3.0  # The file system is slow.
    meanwhile = live.text_at_hand(RunView.status)
    go_on.set()
    thread.join()
    assert meanwhile is not None
    assert meanwhile.body == before.body
    after = live.text_at_hand(RunView.status)
    assert after is not None
    assert state(RunStatus.model_validate_json(after.body)) == "ended"


def test_only_what_was_asked_for_is_made_anew(view: Slow) -> None:
    live = CachedView(view, clock=view.clock.monotonic)
    live.text(RunView.status)
    view.clock.now += 0.9
    live._renew()
    assert view.reads == 2
    view.clock.now += 0.9
    live._renew()
    assert view.reads == 2, "nobody has asked since"


def test_renewal_goes_on_by_itself_and_ends_with_its_block(view: Slow, paths: RunPaths) -> None:
    live = CachedView(view, fresh=0.1)
    with live.renewed():
        live.text(RunView.status)
        end(paths)
        until(lambda: state(live.ask(RunView.status)) == "ended")
        assert any(thread.name == "look" for thread in threading.enumerate())
    assert not any(thread.name == "look" for thread in threading.enumerate())


def test_answers_that_are_never_valid_are_not_renewed(view: Slow) -> None:
    """A renewal would mark the previous answer as valid while it reads the run again."""
    with CachedView(view, fresh=0.0).renewed():
        assert not any(thread.name == "look" for thread in threading.enumerate())


def test_a_failure_while_making_anew_is_told_and_then_forgotten(
    view: Slow, paths: RunPaths
) -> None:
    live = CachedView(view, clock=view.clock.monotonic)
    live.ask(RunView.status)
    damaged = paths.replica_journal("r7")
    damaged.mkdir(parents=True)
    view.clock.now += 0.9
    live._renew()
    for _ in range(2):
        with pytest.raises(JournalError, match="cannot read the journal"):
            live.text(RunView.status)
    damaged.rmdir()
    view.clock.now += 1.1
    assert live.ask(RunView.status).run_id


# Progress is shown from the same look.


def test_each_ended_trial_and_failed_search_is_shown_once(
    view: Slow, paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_module, "LOG_SECONDS", 0.0)
    monkeypatch.setattr(progress_module, "LINE_SECONDS", 0.0)
    output = io.StringIO()
    progress = ProgressDisplay(CachedView(view, fresh=0.0), output)
    for _ in range(3):
        progress.tick()
    ended = [t.id for t in view.history.trials.values() if t.ended is not None]
    with Worker(paths, "r0", view.manifest.config) as worker:
        worker.search.append(SearchFailed(reason="exhausted"))
        worker.search.append(SearchFailed(reason="exhausted"))
    progress.tick()
    progress.end()
    lines = output.getvalue().splitlines()
    shown = [line.split()[0] for line in lines if line.startswith("  r0-")]
    assert shown == ended
    assert len(shown) > 3
    assert [line for line in lines if "search of" in line] == ["  search of r0: exhausted"]


def test_progress_of_a_run_that_cannot_be_read_says_so_and_goes_on(
    view: Slow, paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_module, "LOG_SECONDS", 0.0)
    monkeypatch.setattr(progress_module, "LINE_SECONDS", 0.0)
    output = io.StringIO()
    progress = ProgressDisplay(CachedView(view, fresh=0.0), output)
    damaged = paths.replica_journal("r7")
    damaged.mkdir(parents=True)
    progress.tick()
    assert "progress cannot be shown: cannot read the journal" in output.getvalue()
    damaged.rmdir()
    output.truncate(0)
    for _ in range(2):
        progress.tick()
    assert "trials" in output.getvalue()


def test_many_clients_read_the_journals_once_a_second(view: Slow) -> None:
    live = CachedView(view, clock=view.clock.monotonic)
    with ThreadPoolExecutor(16) as clients:
        answers = list(clients.map(lambda _: live.ask(RunView.status), range(64)))
    assert view.reads == 1
    assert all(answer is answers[0] for answer in answers)
    view.clock.now += 0.9
    live.ask(RunView.trials)
    assert view.reads == 1
    view.clock.now += 0.2
    assert live.ask(RunView.status) is not answers[0]
    assert view.reads == 2


def test_a_failure_is_kept_as_long_as_an_answer_and_no_longer(tmp_path: Path) -> None:
    now, made = 0.0, 0

    def make() -> RunView:
        nonlocal made
        made += 1
        if made == 1:
            raise JournalError("not yet")
        return RunView(written)

    written = write_run(tmp_path, Plan(replicas=1, trials=1, hpo_trials=0))
    live = CachedView(make, clock=lambda: now)
    for _ in range(3):
        with pytest.raises(JournalError, match="not yet"):
            live.ask(RunView.status)
    assert made == 1
    now = 1.5
    assert live.ask(RunView.status).run_id
    now = 3.0
    live.ask(RunView.status)
    assert made == 2, "the view is kept"
