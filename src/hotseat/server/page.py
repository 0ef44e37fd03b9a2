"""The status page, the chat page and their files."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.responses import Response

__all__ = ["PAGE_HEADERS", "router"]

_MEDIA_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
_NAMES = (
    *("page.html", "page.css", "page.js", "records.js", "timeline.js", "details.js", "curves.js"),
    *("chat.html", "chat.css", "chat.js", "chat_stream.js"),
)
_FILES = {name: f"{_MEDIA_TYPES[name.rpartition('.')[2]]}; charset=utf-8" for name in _NAMES}
PAGE_HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
}

router = APIRouter()


@router.get("/", include_in_schema=False)
@router.head("/", include_in_schema=False)
async def status_page() -> Response:
    """Show what sits in the seats."""
    return static_file("page.html")


@router.get("/chat", include_in_schema=False)
@router.head("/chat", include_in_schema=False)
async def chat_page() -> Response:
    """Show a conversation with the model."""
    return static_file("chat.html")


@router.get("/static/{name}", include_in_schema=False)
async def static_file_of_page(name: str) -> Response:
    """Return one of the page's files."""
    if name not in _FILES:
        raise HTTPException(404)
    return static_file(name)


def static_file(name: str) -> Response:
    """Return a file of the folder ``static``."""
    return Response(_content(name), headers=PAGE_HEADERS, media_type=_FILES[name])


@cache
def _content(name: str) -> bytes:
    return (files("hotseat.server") / "static" / name).read_bytes()
