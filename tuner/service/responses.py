"""Responses: JSON with an entity tag, and work that blocks in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import anyio.to_thread
from fastapi import Request
from fastapi.responses import Response

from tuner.service.json_text import told_as_json
from tuner.service.shelf import etag
from tuner.service.state import Service

T = TypeVar("T")

JSON = "application/json"
#: Header with the number of the snapshot.
SNAPSHOT = "x-tuner-snapshot"


async def in_thread(limit: anyio.CapacityLimiter, work: Callable[[], T]) -> T:
    """Does work that computes, in a thread, as soon as a limit admits it."""
    return await anyio.to_thread.run_sync(work, limiter=limit)


async def working(service: Service, work: Callable[[], T]) -> T:
    """Does what reads or writes the database, in a thread."""
    return await in_thread(service.working, work)


def tagged(request: Request, body: bytes, tag: str, snapshot: int, media: str = JSON, **more: str) -> Response:
    """A body with its entity tag; without the body if the client has it already."""
    headers = {"etag": tag, SNAPSHOT: str(snapshot), "cache-control": "no-cache", **more}
    known = request.headers.get("if-none-match", "")
    tags = [each.strip().removeprefix("W/") for each in known.split(",")]
    if "*" in tags or tag in tags:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=media, headers=headers)


def told(request: Request, data: Any, snapshot: int) -> Response:
    """Data as JSON, tagged."""
    body = told_as_json(data).encode()
    return tagged(request, body, etag(body), snapshot)


def page_bounds(limit: int, most: int = 500) -> int:
    """Items of a page, within bounds."""
    return max(1, min(limit, most))
