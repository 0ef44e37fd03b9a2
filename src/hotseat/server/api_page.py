"""The page at ``/docs``: the endpoints as ``/openapi.json`` describes them, without scripts from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from hotseat.server.page import PAGE_HEADERS

__all__ = ["router"]

router = APIRouter()

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>Hotseat: API</title>
<link rel="stylesheet" href="static/page.css"></head>
<body><header><h1><a href="./">Hotseat</a></h1><p>{title} {version}</p>
<nav><a href="openapi.json">openapi.json</a> <a href="metrics">metrics</a></nav></header>
<main>{sections}</main></body></html>
"""


@router.get("/docs", include_in_schema=False)
async def api_page(request: Request) -> Response:
    """List the endpoints, by their tags."""
    description = request.app.openapi()
    by_tag: dict[str, list[str]] = {}
    for tag, line in _lines(description):
        by_tag.setdefault(tag, []).append(line)
    sections = "".join(
        f"<section><h2>{escape(tag)}</h2><dl>{''.join(lines)}</dl></section>" for tag, lines in by_tag.items()
    )
    info = description["info"]
    page = _PAGE.format(title=escape(info["title"]), version=escape(info["version"]), sections=sections)
    return Response(page, headers=PAGE_HEADERS, media_type="text/html")


def _lines(description: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the tag and the entry of each endpoint."""
    for path, methods in description["paths"].items():
        for method, one in methods.items():
            fields = one.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            names = _fields(fields, description)
            body = f"<dd>fields: {escape(', '.join(names))}</dd>" if names else ""
            text = escape(one.get("description") or one.get("summary") or "")
            tag = (one.get("tags") or ["Other"])[0]
            yield tag, f"<dt><code>{method.upper()} {escape(path)}</code></dt><dd>{text}</dd>{body}"


def _fields(schema: dict[str, Any], description: dict[str, Any]) -> list[str]:
    name = schema.get("$ref", "").rpartition("/")[2]
    shown = description.get("components", {}).get("schemas", {}).get(name, schema)
    return list(shown.get("properties", {}))
