"""The documentation's site as a browser draws it, on a phone and on a desk."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from tests.browser.accessibility import assert_accessible
from tests.browser.chromium import Chromium
from tests.support.site import build_site

pytestmark = pytest.mark.browser

PAGES = (
    "index", "tutorials/laptop", "metrics", "reference/configuration",
    "reference/configuration/machine", "reference/rest/trials",
)  # fmt: skip
FOUND = """new Promise(done => setInterval(() => {
  const link = document.querySelector(".md-search-result__link");
  if (link) done(new URL(link.href).origin + new URL(link.href).pathname);
}, 100))"""
"""The address of the first result, once there is one."""
COPIED = """(() => {
  const code = [...document.querySelectorAll("code")].find(code => code.querySelector(".gp"));
  code.toggleAttribute("data-md-copying");
  return code.innerText.trim();
})()"""
"""The text that the copy button of the first console session takes."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_site(tmp_path_factory.mktemp("site"))


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("page", PAGES)
def test_a_page_fits_its_window_and_axe_finds_nothing(
    browser: Chromium, axe: str, site: Path, page: str, width: int
) -> None:
    browser.open(site / f"{page}.html", width=width, scheme="light")
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    assert_accessible(browser, axe)


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder, and does not print each request."""

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture(params=["file", "http"])
def address(request: pytest.FixtureRequest, site: Path) -> Iterator[str]:
    """The address of the site: of its folder, or of a static server."""
    if request.param == "file":
        yield site.as_uri()
        return
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site)) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_search_works_with_and_without_a_server(
    browser: Chromium, address: str, scheme: str
) -> None:
    browser.open(f"{address}/index.html", width=1280, scheme=scheme)
    background = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") == (scheme == "light")
    browser.evaluate("document.querySelector('.md-search__input').focus()")
    browser.call("Input.insertText", text="fencing")
    for kind in ("keyDown", "keyUp"):  # The page reads the text when a key is released.
        browser.call("Input.dispatchKeyEvent", type=kind, key="Shift")
    found = browser.evaluate(FOUND)
    assert found.endswith("/decisions/fencing.html")
    assert browser.complaints == []


def test_a_console_session_is_copied_without_its_output(browser: Chromium, site: Path) -> None:
    browser.open(site / "tutorials/laptop.html", width=1280, scheme="light")
    copied = browser.evaluate(COPIED)
    assert copied == "aiperf doctor"
