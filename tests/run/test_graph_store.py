from __future__ import annotations

from pathlib import Path

import pytest

from aiperf_hpc.errors import GraphError
from aiperf_hpc.graph import Conv2D, Graph, Input, Node
from aiperf_hpc.run.graph_store import GraphStore
from aiperf_hpc.run.paths import RunPaths


def graph(channels: int, name: str = "conv") -> Graph:
    return Graph((Node("image", Input((4, 4, 3))), Node(name, Conv2D(channels, 3), ("image",))))


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths(tmp_path / "run")


def test_a_graph_is_stored_by_its_hash_and_read_by_another(paths: RunPaths) -> None:
    stored = GraphStore(paths).save(graph(4))
    assert stored == graph(4).hash
    assert paths.graph(stored).exists()
    assert GraphStore(paths).load(stored) == graph(4)
    paths.graph(stored).unlink()  # One that has gone since is stored again.
    GraphStore(paths).save(graph(4))
    assert GraphStore(paths).load(stored) == graph(4)


def test_equal_graphs_share_one_file_that_the_second_leaves_alone(paths: RunPaths) -> None:
    stored = GraphStore(paths).save(graph(4, "first"))
    before = paths.graph(stored).stat().st_ino
    assert GraphStore(paths).save(graph(4, "second")) == stored
    assert paths.graph(stored).stat().st_ino == before
    assert GraphStore(paths).load(stored).output.name == "first"


def test_a_file_with_another_graphs_content_is_refused(paths: RunPaths) -> None:
    store = GraphStore(paths)
    one, other = store.save(graph(4)), store.save(graph(5))
    paths.graph(one).write_bytes(paths.graph(other).read_bytes())
    with pytest.raises(GraphError, match=rf"{one}\.json: its content has the hash {other}"):
        GraphStore(paths).load(one)
    with pytest.raises(GraphError, match=rf"{one}\.json: its content has the hash {other}"):
        GraphStore(paths).load(one, graph(4))


def test_an_expected_graph_is_not_parsed(paths: RunPaths) -> None:
    expected = graph(4)
    assert GraphStore(paths).load(GraphStore(paths).save(expected), expected) is expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"cannot read the graph .*candidates/abc\.json"),
        *((content, r"abc\.json") for content in (b"", b"\xff", b'{"schema": 1, "nodes": []}')),
    ],
)
def test_a_file_that_holds_no_graph_is_refused_by_its_path(
    paths: RunPaths, content: bytes | None, message: str
) -> None:
    paths.candidates.mkdir(parents=True)
    if content is not None:
        paths.graph("abc").write_bytes(content)
    with pytest.raises(GraphError, match=message):
        GraphStore(paths).load("abc")
