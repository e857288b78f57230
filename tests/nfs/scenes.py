"""Scenarios of the guest; each writes its observations as JSON.

python -m tests.nfs.scenes SCENE
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from .guest import EXPORTS, RESULTS, Client, Server, sh

MAIN = EXPORTS / "main"
OUTAGE_SECONDS = 60.0
PATIENCE_SECONDS = 120.0


def smoke(server: Server) -> dict[str, Any]:
    """One host writes a journal while the server is away for a moment, another reads it."""
    writer, reader = Client("main"), Client("main")
    writing, tailing = writer.program("write", "r0", 100, 0.03), reader.program("tail", "r0")
    _until((MAIN / "run/replicas/r0/0.0/journal.jsonl").exists)
    server.stop()
    time.sleep(2)
    server.start()
    return {"written": writing.result(), "read": tailing.result()}


def journals(_: Server) -> dict[str, Any]:
    """Three hosts write journals, a fourth follows them with three processes at once."""
    writers, reader = [Client("main") for _ in range(3)], Client("main")
    count = 200
    writing = [w.program("write", f"r{n}", count, 0.0) for n, w in enumerate(writers)]
    tailing = [reader.program("tail", "r0,r1,r2") for _ in range(3)]
    return {
        "count": count,
        "written": [program.result() for program in writing],
        "read": [program.result() for program in tailing],
        "in_order": [reader.program("count", f"r{n}").result() for n in range(3)],
    }


def zeros(_: Server) -> dict[str, Any]:
    """A journal grows as fast as it can, and many processes of one host follow it."""
    writer, reader = Client("main"), Client("main")
    flooding = writer.program("flood", "r0", 30)
    _until((MAIN / "run/replicas/r0/0.0/journal.jsonl").exists)
    following = [reader.program("follow", "r0", pause) for pause in (0.0, 0.01)]
    glancing = [reader.program("glance", "r0", pause) for pause in (0.0, 0.0, 0.01, 0.05)]
    return {
        "glanced": [program.result() for program in glancing],
        "written": flooding.result(),
        "read": [program.result() for program in following],
    }


def files(_: Server) -> dict[str, Any]:
    """One host replaces a file, others read it; two hosts make and take the same runs."""
    one, two = Client("main"), Client("main")
    one.call("mkdir", "/media/claims")
    replacing = one.program("replace", "file", 12)
    _until((MAIN / "file").exists)  # Else its absence is what the other host sees for long.
    reading = [two.program("read", "file", 10), one.program("read", "file", 10)]
    found = {
        "replaced": replacing.result(),
        "read": [program.result() for program in reading],
    }
    claiming = [host.program("claim", 12) for host in (one, two)]
    found |= {"claims": [program.result() for program in claiming]}
    racing = [host.program("take_in_hand", 20) for host in (one, two)]
    return found | {"races": [program.result() for program in racing]}


def full(server: Server) -> dict[str, Any]:
    """A disk fills and is freed again while a host writes to it."""
    host, folder = Client("small"), EXPORTS / "small/run/candidates"
    working = host.program("work", "r0", 22)
    time.sleep(7)
    server.fill("small")
    time.sleep(10)
    server.free("small")
    return {
        "work": working.result(),
        "in_order": host.program("count", "r0").result(),
        "waits": host.program("waits", "r0").result(),
        "files": {path.name: len(set(path.read_text().split())) for path in folder.iterdir()},
    }


def lag(_: Server) -> dict[str, Any]:
    """A file is looked for before it is there: when is it seen, by which mount options?"""
    writer, found = Client("main"), {}
    options = {
        "default": "",
        "60 s": "acregmin=60,acregmax=60,acdirmin=60,acdirmax=60",
        "positive": "lookupcache=positive",
    }
    hosts = {name: Client("main", text) for name, text in options.items()}
    writer.call("mkdir", "-p", "/media/run/primary", "/media/run/candidates")
    proposing = writer.program("propose", 15)
    _until((MAIN / "run/replicas/r0/0.0/search-0.jsonl").exists)
    taking = {name: host.program("take") for name, host in hosts.items()}
    waiting = {name: host.program("await_stop") for name, host in hosts.items()}
    there = proposing.result()
    asked = writer.program("request_stop").result()
    for name in options:
        taken, seen = taking[name].result(), waiting[name].result()
        found[name] = {
            "stop_seconds": seen - asked,
            "candidate_seconds": taken["utc"] - there,
            **taken,
        }
    return found


def run(server: Server) -> dict[str, Any]:
    """A benchmark run, its primary and replicas on three hosts, through all that may happen.

    The server stops for a minute; later its export is gone for a while; later its disk is full.
    One replica has a hard mount, the other a soft one. A journal beside them is written through
    the same.
    """
    primary, hard, soft = (
        Client("main"), Client("main"), Client("main", "soft,timeo=50,retrans=1"),
    )  # fmt: skip
    beside = [host.program("write", name, 500, 0.3) for host, name in ((hard, "h"), (soft, "s"))]
    conducting = primary.program(
        "primary", "bench", hard.pid, soft.pid, "--hours", 0.075,
        "--set", "engine.simulation.operations_per_second=1e10",
        "--set", "engine.simulation.build_seconds=0.2",
        "--set", "journal.heartbeat_interval_seconds=3",
        "--set", "journal.progress_interval_seconds=1",
        "--set", "training.checkpoint_interval_seconds=5",
    )  # fmt: skip
    bench = MAIN / "bench"
    _until(lambda: all((bench / f"replicas/r{n}/0.0/search-0.jsonl").exists() for n in (0, 1)))
    time.sleep(10)
    timeline: list[tuple[str, float]] = []
    for what, act, seconds in (
        ("stop", server.stop, OUTAGE_SECONDS),
        ("start", server.start, 35.0),
        ("unexport", lambda: server.unexport("main"), 10.0),
        ("export", lambda: server.export("main"), 15.0),
        ("fill", lambda: server.fill("main"), 15.0),
        ("free", lambda: server.free("main"), 0.0),
    ):
        say(what)
        timeline.append((what, time.time()))
        act()
        time.sleep(seconds)
    say("over")
    return {
        "timeline": timeline,
        "outage": OUTAGE_SECONDS,
        "status": conducting.result(),
        "beside": [program.result() for program in beside],
        "in_order": [primary.program("count", name).result() for name in ("h", "s")],
        "verify": Client("main").program("verify", "bench").result(),
    }


def outage(server: Server) -> dict[str, Any]:
    """What any program meets while the server is away for a minute, and then its export."""
    hosts = {"hard": Client("main"), "soft": Client("main", "soft,timeo=50,retrans=1")}
    probing = {name: host.program("probe", name, 125) for name, host in hosts.items()}
    _until(lambda: all((MAIN / name).exists() for name in hosts))
    time.sleep(3)
    server.stop()
    time.sleep(OUTAGE_SECONDS)
    server.start()
    time.sleep(30)
    server.unexport("main")
    time.sleep(8)
    server.export("main")
    return {name: program.result() for name, program in probing.items()}


def stale(server: Server) -> dict[str, Any]:
    """Someone replaces a journal by a copy, cuts one short, removes one, while it is written."""
    host = Client("main")
    keeping = {name: host.program("keep", name, 40) for name in ("copied", "shortened", "removed")}
    folder = MAIN / "run/replicas"
    _until(lambda: all((folder / name / "0.0/journal.jsonl").exists() for name in keeping))
    time.sleep(3)
    # With the server at rest, as when someone puts back a backup.
    server.stop()
    for name, how in (
        ("copied", "cp $f $f.new && mv $f.new $f"),
        ("shortened", "truncate -s 100 $f"),
        ("removed", "rm $f"),
    ):
        sh(f"f={folder / name}/0.0/journal.jsonl; {how}")
    server.start()
    said = {name: program.result() for name, program in keeping.items()}
    return {
        "said": said,
        "in_order": host.program("count", "copied").result(),
        # By another host: the writer's own has in its cache what is lost. It even writes the
        # last page again.
        "problems": Client("main").program("problems", "shortened").result(),
    }


def say(what: str) -> None:
    """Note in the output how far it has come."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {what}\n")


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError(f"not within {PATIENCE_SECONDS} s")
        time.sleep(0.2)


def main() -> None:
    """Play the scene that is named."""
    name, began = sys.argv[1], time.monotonic()
    scene: Callable[[Server], dict[str, Any]] = globals()[name]
    result = scene(Server(main=128, small=16)) | {"seconds": time.monotonic() - began}
    (RESULTS / f"{name}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
