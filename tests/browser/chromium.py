"""Chromium without a window, spoken to in its DevTools protocol over two pipes.

``--remote-debugging-pipe``: JSON both ways, each message followed by a zero byte, so that no
package for web sockets is needed.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-sync",
    "--hide-scrollbars",
    "--no-first-run",
    "--remote-debugging-pipe",
)
READS, WRITES = 3, 4
"""The descriptors by which Chromium takes commands and answers, by its own convention."""


class ChromiumError(Exception):
    """Chromium has ended, or did not do as it was told."""


class Chromium:
    """A browser with one page; ``chromium`` starts it."""

    def __init__(self, commands: IO[bytes], answers: IO[bytes], log: Path) -> None:
        self._to, self._from, self._log = commands, answers, log
        self._number = 0
        self._session: str | None = None
        self._snapshot: list[str] = []
        self.complaints: list[str] = []
        """What pages have complained of since the last ``open``: errors and warnings."""
        (page,) = (
            target
            for target in self.call("Target.getTargets")["targetInfos"]
            if target["type"] == "page"
        )
        attached = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """Have a command done and return its result. Raises ChromiumError."""
        self._number += 1
        message: dict[str, object] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._to.write(json.dumps(message).encode() + b"\0")
        self._to.flush()
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                break
        if "error" in answer:
            raise ChromiumError(f"{method}: {answer['error']['message']}")
        result: dict[str, Any] = answer["result"]
        return result

    def open(
        self,
        page: Path | str,
        *,
        width: int,
        scheme: str,
        height: int = 844,
        policy: bool = False,
    ) -> None:
        """Show a file or an address in a window of this width.

        Args:
            page: the file, or the address.
            width: of the window in pixels; below 600 it is a phone's.
            scheme: ``light`` or ``dark``, or ``paper`` for the page as it is printed.
            height: of the window in pixels.
            policy: whether the page's Content-Security-Policy holds; axe works without it alone.
        """
        self.call("Page.setBypassCSP", enabled=not policy)
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=width < 600)  # fmt: skip
        paper = scheme == "paper"
        feature = {"name": "prefers-color-scheme", "value": "light" if paper else scheme}
        self.call("Emulation.setEmulatedMedia", media="print" * paper, features=[feature])
        self.complaints.clear()
        self.call("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
        while self._receive().get("method") != "Page.loadEventFired":
            pass

    def evaluate(self, script: str) -> Any:  # noqa: ANN401 -- whatever the page computes
        """Return the value of an expression in the page, awaited where it is a promise."""
        answer = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in answer:
            raise ChromiumError(json.dumps(answer["exceptionDetails"])[:2000])
        return answer["result"].get("value")

    def heap(self) -> dict[str, Any]:
        """Return a snapshot of what is in use on the page's heap, in V8's format."""
        self._snapshot.clear()
        for _ in range(3):  # A collection frees the elements whose objects the previous one freed.
            self.call("HeapProfiler.collectGarbage")
        self.call("HeapProfiler.takeHeapSnapshot", reportProgress=False)
        found: dict[str, Any] = json.loads("".join(self._snapshot))
        return found

    def screenshot(self, clip: Mapping[str, float] | None = None) -> bytes:
        """Return the page, or the part at ``clip`` (x, y, width, height), as PNG."""
        more = {} if clip is None else {"clip": {**clip, "scale": 1}}
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=True, **more)
        return base64.b64decode(answer["data"])

    def _receive(self) -> dict[str, Any]:
        parts = bytearray()
        while (byte := self._from.read(1)) != b"\0":
            if not byte:
                said = self._log.read_text("utf-8", "replace").strip()[-1000:]
                raise ChromiumError(f"Chromium has ended: {said}")
            parts += byte
        message: dict[str, Any] = json.loads(parts)
        self._hear(message)
        return message

    def _hear(self, message: dict[str, Any]) -> None:
        said = message.get("params", {})
        match message.get("method"):
            case "Runtime.consoleAPICalled" if said["type"] in ("error", "warning", "assert"):
                self.complaints.append(json.dumps(said["args"]))
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(said["exceptionDetails"]))
            case "HeapProfiler.addHeapSnapshotChunk":
                self._snapshot.append(said["chunk"])
            case "Log.entryAdded" if said["entry"]["level"] in ("error", "warning"):
                self.complaints.append(json.dumps(said["entry"]))


@contextmanager
def chromium(program: str) -> Iterator[Chromium]:
    """Start a browser, and leave nothing of it."""
    with tempfile.TemporaryDirectory(prefix="aiperf-browser-") as profile:
        log = Path(profile) / "stderr"
        process, commands, answers = _spawned(program, Path(profile), log)
        try:
            with commands, answers:
                yield Chromium(commands, answers, log)
        finally:
            os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)


def _spawned(program: str, profile: Path, log: Path) -> tuple[int, IO[bytes], IO[bytes]]:
    """Return a browser's process, in a group of its own, and the pipes that it is spoken to by."""
    theirs_in, ours_out = _high_pipe()
    ours_in, theirs_out = _high_pipe()
    process = os.posix_spawn(
        program,
        [program, *FLAGS, f"--user-data-dir={profile}/data", "about:blank"],
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_DUP2, theirs_in, READS),
            (os.POSIX_SPAWN_DUP2, theirs_out, WRITES),
            (os.POSIX_SPAWN_OPEN, 2, str(log), os.O_WRONLY | os.O_CREAT, 0o600),
        ],
        setpgroup=0,
    )
    os.close(theirs_in)
    os.close(theirs_out)
    return process, os.fdopen(ours_out, "wb"), os.fdopen(ours_in, "rb")


def _high_pipe() -> tuple[int, int]:
    """Return a pipe whose descriptors are none of those that Chromium gets."""
    ends = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return high[0], high[1]
