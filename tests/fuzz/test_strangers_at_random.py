"""Files changed at random: each command says in a line what is wrong, whatever is in them.

``make fuzz`` makes 20,000 cases, none of which may take more than 5 s of processor time or 1 GB.
"""

from __future__ import annotations

import json
import resource
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, NoReturn

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient
from tests.fuzz.mutations import (
    Draw,
    changed,
    changed_bytes,
    changed_document,
    changed_journal,
)
from tests.support.command import aiperf
from tests.support.hostile import asked, commands
from tests.support.hostile_service import OF_ALL, Renewed, addresses_of, answered, client_of
from tests.support.run_factory import Plan, write_run

from aiperf_hpc.config import preset_names, preset_text
from aiperf_hpc.errors import AIPerfError
from aiperf_hpc.graph import Graph
from aiperf_hpc.ops_counter.count import count
from aiperf_hpc.results.report.writer import write_report
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.paths import RunPaths

MOST_SECONDS, MOST_BYTES = 5.0, 10**9
"""What a case may take: of processor time, and of memory beyond what there was."""
HANGS = 120
"""Seconds after which a case is taken for one that does not end."""
PLAN = Plan(replicas=1, trials=2, hpo_trials=1, failed=0, epochs=1)


class Ground(NamedTuple):
    """Where cases take place."""

    folder: Path
    """It has the run, alone in ``runs``, and its copy, ``kept``."""
    runs: Renewed
    client: TestClient
    """Of a service of these runs."""
    addresses: tuple[str, ...]
    """What it can be asked for."""


class Kind(NamedTuple):
    """What is changed."""

    few: int
    """Cases in each run of the tests."""
    many: int
    """Cases of ``make fuzz``."""
    case: Callable[[Draw, Ground], None]
    """Changes something of a run in the folder ``run`` of a folder, and looks at it."""


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    made = tmp_path_factory.mktemp("fuzz")
    write_report(RunView(write_run(made / "runs" / "run", PLAN)))
    shutil.copytree(made / "runs" / "run", made / "kept")
    runs = Renewed(made / "runs")
    with client_of(runs) as client:
        yield Ground(made, runs, client, (*OF_ALL, *addresses_of(client, "run")))


def _look(draw: Draw, ground: Ground) -> None:
    """Carry out a command on the run, which verify is one of two times, or ask the service."""
    run = ground.folder / "runs" / "run"
    verify, *others = commands(run)
    try:
        match draw(st.sampled_from(["verify", "verify", "another", "service"])):
            case "verify":
                asked(run, [verify])
            case "another":
                asked(run, [draw(st.sampled_from(others))])
            case _:
                _ask_service(draw, ground)
    finally:
        shutil.rmtree(run)
        shutil.copytree(ground.folder / "kept", run)


def _ask_service(draw: Draw, ground: Ground) -> None:
    """Ask a service that has just begun for all runs, or for something of the one."""
    with ground.runs.begun():
        for address in draw(st.lists(st.sampled_from(ground.addresses), min_size=1, max_size=3)):
            answered(ground.client, address)


def _write(ground: Ground, name: str, content: bytes) -> None:
    (ground.folder / "runs" / "run" / name).write_bytes(content)


def _read(ground: Ground, name: str) -> bytes:
    return (ground.folder / "kept" / name).read_bytes()


def _text_of(draw: Draw, document: Any) -> bytes:  # noqa: ANN401 -- whatever was made of it
    """Return a document as YAML, bytes of which may be changed."""
    content = yaml.safe_dump(document, allow_unicode=True).encode(errors="surrogatepass")
    return changed_bytes(draw, content) if draw(st.integers(0, 3)) == 0 else content


def _configuration(draw: Draw, ground: Ground) -> None:
    text = preset_text(draw(st.sampled_from(preset_names())))
    document = yaml.safe_load(text)
    for _ in range(draw(st.integers(0, 3))):
        document = changed(draw, document)
    file = ground.folder / "mine.yaml"
    file.write_bytes(_text_of(draw, document))
    done = aiperf("config", "show", file, draw(st.sampled_from(["--resolved", "--changed"])))
    assert done.returncode in (0, 2), done
    assert bool(done.stderr) == bool(done.returncode), done
    assert done.stderr.count("\n") == bool(done.stderr), done


def _graph(draw: Draw, ground: Ground) -> None:
    graphs = sorted((ground.folder / "kept" / "candidates").glob("*.json"))
    stored = draw(st.sampled_from(graphs))
    content = changed_document(draw, stored.read_bytes())
    try:
        graph = Graph.from_json(content.decode(errors="replace"))
        str((count(graph).training, graph.parameter_count, graph.depth, graph.hash))
    except AIPerfError as error:
        if "\n" in (said := str(error)):
            pytest.fail(f"more than a line: {said}")
    if draw(st.integers(0, 49)) == 0:
        _write(ground, f"candidates/{stored.name}", content)
        _look(draw, ground)


def _journal(draw: Draw, ground: Ground) -> None:
    kept = ground.folder / "kept"
    names = [str(each.relative_to(kept)) for each in RunPaths(kept).journals()]
    name = draw(st.sampled_from(names))
    _write(ground, name, changed_journal(draw, _read(ground, name)))
    _look(draw, ground)


def _manifest(draw: Draw, ground: Ground) -> None:
    if draw(st.booleans()):
        document = changed(draw, yaml.safe_load(_read(ground, "run.yaml")))
        _write(ground, "run.yaml", _text_of(draw, document))
    else:
        name = "report/manifest.json"
        _write(ground, name, changed_document(draw, _read(ground, name)))
    _look(draw, ground)


def _report(draw: Draw, ground: Ground) -> None:
    name = draw(st.sampled_from(["report.json", "summary.json", "result.txt", "result_0.txt"]))
    change = changed_document if name.endswith(".json") else changed_bytes
    name = f"report/{name}"
    _write(ground, name, change(draw, _read(ground, name)))
    _look(draw, ground)


KINDS = {
    "configuration": Kind(60, 6_000, _configuration),
    "graph": Kind(60, 5_000, _graph),
    "journal": Kind(40, 5_000, _journal),
    "manifest": Kind(20, 2_000, _manifest),
    "report": Kind(20, 2_000, _report),
}


def _does_not_end(number: int, frame: FrameType | None) -> NoReturn:
    raise TimeoutError(f"no end after {HANGS} s")


@contextmanager
def _ending() -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, _does_not_end)
    signal.alarm(HANGS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _carry_out(kind: Kind, cases: int, ground: Ground) -> list[tuple[float, int]]:
    """Carry out cases; return the processor time of each and the bytes by which memory grew."""
    taken: list[tuple[float, int]] = []

    @settings(
        max_examples=cases,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def case(data: st.DataObject) -> None:
        began, before = time.process_time(), _memory()
        with _ending():
            kind.case(data.draw, ground)
        taken.append((time.process_time() - began, _memory() - before))

    case()
    return taken


@pytest.mark.parametrize("name", KINDS)
def test_no_case_ends_in_a_traceback(ground: Ground, name: str) -> None:
    kind = KINDS[name]
    assert len(_carry_out(kind, kind.few, ground)) >= kind.few


@pytest.mark.fuzz
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", KINDS)
def test_no_case_takes_long_or_much(ground: Ground, name: str) -> None:
    kind = KINDS[name]
    taken = _carry_out(kind, kind.many, ground)
    longest, most = (max(column) for column in zip(*taken, strict=True))
    print(  # noqa: T201 -- the figures
        f"\n{name}: {len(taken):,} cases, {sum(s for s, _ in taken):.0f} s, "
        f"the longest {longest:.2f} s, the largest {most / 1e6:.0f} MB"
    )
    assert len(taken) >= kind.many
    assert longest < MOST_SECONDS
    assert most < MOST_BYTES


def test_what_is_changed_is_really_changed() -> None:
    """A fuzzer that leaves all as it is finds nothing either."""
    document = {"a": [1, {"b": "text"}], "c": 2.5}
    content = json.dumps(document).encode()

    @settings(max_examples=50, derandomize=True, database=None, deadline=None)
    @given(data=st.data())
    def most_are(data: st.DataObject) -> None:
        made.add(changed_document(data.draw, content))

    made: set[bytes] = set()
    most_are()
    assert len(made - {content}) > 30
