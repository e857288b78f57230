"""Routes of the live page at ``/`` and its files."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from importlib import resources
from typing import Final, NamedTuple

from fastapi import APIRouter, Request, Response

from aiperf_hpc.service.problem import not_found

TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'sha256-{style}'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
IMPORT: Final = re.compile(r'^import (\{ [\w, ]+ \}) from "\./(\w+\.js)";$', re.MULTILINE)
EXPORT: Final = re.compile(r"^export (?:async )?(?:function|class|const) (\w+)", re.MULTILINE)
"""Single-line imports and exports of the page's modules; no other forms are supported."""
HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
"""Headers: browsers revalidate files (status 304)."""


class Asset(NamedTuple):
    """A file of the live page."""

    content: bytes
    media_type: str
    tag: str
    """``ETag`` of the file."""


def page_routes() -> APIRouter:
    """Return the routes of the page, whose files are read once from the package.

    No external resources are allowed, and no inline ones but the style sheets, without which a
    browser shows nothing.
    """
    assets = _assets()
    style = assets.pop("report.css").content + assets.pop("page.css").content
    html = assets["index.html"].content.replace(b"<style>", b"<style>" + style)
    assets["index.html"] = _asset(html, TYPES["html"])
    digest = base64.b64encode(hashlib.sha256(style).digest()).decode()
    assets["page.js"] = _asset(_script(assets).encode(), TYPES["js"])
    headers = {**HEADERS, "Content-Security-Policy": POLICY.format(style=digest)}
    router = APIRouter(include_in_schema=False)

    @router.api_route("/", methods=["GET", "HEAD"])
    async def index(request: Request) -> Response:
        return _response(assets["index.html"], request, headers)

    @router.api_route("/assets/{name}", methods=["GET", "HEAD"])
    async def asset(request: Request, name: str) -> Response:
        if name not in assets:
            raise not_found(f"the page has no file {name!r}")
        return _response(assets[name], request, headers)

    return router


def _assets() -> dict[str, Asset]:
    """Return the page's files and the style sheet shared with reports, by name."""
    files = [
        *resources.files("aiperf_hpc.service.page").iterdir(),
        resources.files("aiperf_hpc.results.report") / "report.css",
    ]
    return {
        file.name: _asset(file.read_bytes(), TYPES[kind])
        for file in files
        if (kind := file.name.rpartition(".")[2]) in TYPES
    }


def _script(assets: Mapping[str, Asset]) -> str:
    """Return the page's modules as one script, because their requests would delay the first paint.

    Each module becomes a function that returns its exports, after those that it imports.
    """
    written = dict[str, str]()

    def write(name: str) -> None:
        text = assets[name].content.decode()
        for _, imported in IMPORT.findall(text):
            if imported not in written:
                write(imported)
        exported = ", ".join(EXPORT.findall(text))
        body = EXPORT.sub(lambda found: found[0].removeprefix("export "), text)
        body = IMPORT.sub(r'const \1 = modules["\2"];', body)
        written[name] = f'modules["{name}"] = (() => {{\n{body}return {{ {exported} }};\n}})();\n'

    write("main.js")
    return "".join(["const modules = {};\n", *written.values()])


def _asset(content: bytes, media_type: str) -> Asset:
    digest = hashlib.sha256(content).hexdigest()
    return Asset(content, media_type, f'"{digest[:32]}"')


def _response(asset: Asset, request: Request, headers: Mapping[str, str]) -> Response:
    headers = {**headers, "ETag": asset.tag}
    if request.headers.get("If-None-Match") == asset.tag:
        return Response(status_code=304, headers=headers)
    return Response(asset.content, media_type=asset.media_type, headers=headers)
