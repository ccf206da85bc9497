"""Renders a page for whoever asks, with what all pages show."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
from fastapi import Request
from fastapi.responses import HTMLResponse, Response

from tuner.service.access import service_of, session_of
from tuner.service.sessions import COOKIE, LASTS_S, Session
from tuner.service.tokens import Caller
from tuner.service.words import FILTERS
from tuner.version import __version__

FOLDER = Path(__file__).parent


@functools.cache
def _templates() -> jinja2.Environment:
    loader = jinja2.FileSystemLoader(FOLDER / "templates")
    found = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    found.filters |= FILTERS
    return found


def page(
    request: Request, template: str, caller: Caller | None, values: Mapping[str, Any], status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> Response:  # fmt: skip
    """A page.

    Args:
        request: What is asked.
        template: Name of the template, without its ending.
        caller: Who asks; None for nobody who is known.
        values: What the template shows.
        status: Status of the response.
        headers: More headers.
    """
    service = service_of(request)
    session, cookie = session_of(request), ""
    if session is None and caller is not None and service.keeper.is_open:
        cookie, session = service.sessions.begin("")
    shared = {
        "root": request.scope.get("root_path", ""), "version": __version__, "caller": caller,
        "open": service.keeper.is_open, "csrf": session.csrf if session else "",
        "snapshot": service.shelf.present.manifest.number, "here": request.scope["path"],
    }  # fmt: skip
    text = _templates().get_template(f"{template}.html").render(**shared, **values)
    response = HTMLResponse(text, status, {"cache-control": "no-store", **(headers or {})})
    if cookie:
        set_cookie(request, response, cookie)
    return response


def set_cookie(request: Request, response: Response, cookie: str) -> None:
    """Sets the cookie of a login: scripts cannot read it, and other sites' requests do not carry it."""
    root = request.scope.get("root_path", "")
    response.set_cookie(
        COOKIE, cookie, max_age=LASTS_S, path=root or "/", httponly=True, samesite="strict",
        secure=request.url.scheme == "https",
    )  # fmt: skip


def session_needed(request: Request) -> Session:
    """The session of a form.

    Raises:
        Refused: There is none.
    """
    from tuner.service.errors import Refused

    session = session_of(request)
    if session is None:
        raise Refused(403, "the form was not made by this server, or is too old; open the page again")
    return session
