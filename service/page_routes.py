"""Routes of the live page at ``/`` and its files."""

from __future__ import annotations

import hashlib
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
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
"""Headers: no external or inline resources; browsers revalidate files (status 304)."""


class Asset(NamedTuple):
    """A file of the live page."""

    content: bytes
    media_type: str
    tag: str
    """``ETag`` of the file."""


def page_routes() -> APIRouter:
    """Return the routes of the page, whose files are read once from the package."""
    assets = _assets()
    router = APIRouter(include_in_schema=False)

    @router.api_route("/", methods=["GET", "HEAD"])
    async def index(request: Request) -> Response:
        return _response(assets["index.html"], request)

    @router.api_route("/assets/{name}", methods=["GET", "HEAD"])
    async def asset(request: Request, name: str) -> Response:
        if name not in assets:
            raise not_found(f"the page has no file {name!r}")
        return _response(assets[name], request)

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


def _asset(content: bytes, media_type: str) -> Asset:
    digest = hashlib.sha256(content).hexdigest()
    return Asset(content, media_type, f'"{digest[:32]}"')


def _response(asset: Asset, request: Request) -> Response:
    headers = {**HEADERS, "ETag": asset.tag}
    if request.headers.get("If-None-Match") == asset.tag:
        return Response(status_code=304, headers=headers)
    return Response(asset.content, media_type=asset.media_type, headers=headers)
