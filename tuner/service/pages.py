"""Pages for people."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse, Response

router = APIRouter(include_in_schema=False)


def error_page(request: Request, status: int, message: str, headers: Mapping[str, str]) -> Response:
    """An error as a page."""
    return HTMLResponse(message, status, dict(headers))


def mount_files(app: FastAPI) -> None:
    """Serves stylesheet and scripts."""
