"""The live page in a browser, as the tests use it."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any, Final

from tests.browser.chromium import Chromium
from tests.support.waiting import until

PHONE, DESK, WALL = 390, 1280, 2560
"""Widths of windows in pixels."""
NAME: Final = "a run <img src=x onerror=alert(1)> of ours"
"""A name that is data, whatever it looks like."""
ADDRESS: Final = urllib.parse.quote(NAME, safe="")
RUN: Final = f"#/runs/{ADDRESS}"
TOKEN: Final = "a-token-of-the-tests"  # noqa: S105 -- no secret


class Page:
    """The page of a service, in a browser."""

    def __init__(self, browser: Chromium, url: str) -> None:
        self.browser, self.url = browser, url
        self.evaluate = browser.evaluate

    def open(self, fragment: str = "", **how: Any) -> None:  # noqa: ANN401
        how = {"width": DESK, "scheme": "light", "policy": True, **how}
        self.browser.open("about:blank", **how)  # The address may differ by its fragment alone.
        self.browser.open(f"{self.url}/{fragment}", **how)

    def of(self, selector: str, expression: str) -> Any:  # noqa: ANN401
        """Return an expression of the first such element, ``it``."""
        return self.evaluate(
            f"(it => {expression})(document.querySelector({json.dumps(selector)}))"
        )

    def all(self, selector: str, expression: str) -> list[Any]:
        """Return an expression of each such element, ``it``."""
        script = f"[...document.querySelectorAll({json.dumps(selector)})].map(it => {expression})"
        return list(self.evaluate(script))

    def text(self, selector: str) -> str | None:
        """Return the text of the first such element, with single spaces; None without one."""
        found = self.of(selector, "it?.textContent")
        return None if found is None else " ".join(str(found).split())

    def count(self, selector: str) -> int:
        return len(self.all(selector, "1"))

    def click(self, selector: str) -> None:
        self.of(selector, "it.click()")

    def enter(self, selector: str, value: str) -> None:
        """Give a field a value, and tell its form."""
        self.of(selector, f"{{ it.value = {json.dumps(value)}; for (const type of ['input', "
                "'change']) it.dispatchEvent(new Event(type, {bubbles: true})); }")  # fmt: skip

    def press(self, key: str) -> None:
        """Press a key, as a hand does."""
        more = {"text": "\r", "windowsVirtualKeyCode": 13} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.browser.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, **more)

    def shows(self, selector: str, text: str) -> None:
        """Wait until an element has a text in it."""
        until(
            lambda: text in (self.text(selector) or ""),
            lambda: (selector, text, self.text(selector), self.browser.complaints),
        )

    def holds(self, expression: str) -> None:
        """Wait until an expression is true."""
        until(lambda: self.evaluate(expression), lambda: expression)

    def api(self, path: str) -> Any:  # noqa: ANN401
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}") as answer:  # noqa: S310 -- loopback
            return json.loads(answer.read())

    def agrees(self, said: Callable[[], dict[str, str]]) -> None:
        """Wait until elements have the texts that the interface says, which change each second."""

        def difference() -> dict[str, tuple[str, str | None]]:
            return {k: (v, self.text(k)) for k, v in said().items() if self.text(k) != v}

        until(lambda: not difference(), difference)
