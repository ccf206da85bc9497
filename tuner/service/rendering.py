"""Renders a page for whoever asks, with what all pages show."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import jinja2
from fastapi import Request
from fastapi.responses import HTMLResponse, Response
from markupsafe import Markup

from tuner.declare.problem import worded
from tuner.results.units import answer_speed, duration
from tuner.service.access import service_of, session_of
from tuner.service.snapshots import finite
from tuner.service.tokens import COOKIE, LASTS_S, Caller, LoginSession
from tuner.version import __version__


def shown_duration(seconds: float | None) -> str:
    """Seconds in the unit that suits; "-" for none."""
    return "-" if seconds is None else duration(seconds)


def when(text: str | None) -> Markup:
    """A time to the minute, UTC, which says it in full on request."""
    if not text:
        return Markup("-")
    try:
        moment = datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        return Markup("{}").format(text[:40])
    shown = f"{moment:%Y-%m-%d %H:%M}"
    return Markup('<time datetime="{}" title="{} UTC">{}</time>').format(text, text[:19], shown)


def problem(told: Mapping[str, Any]) -> str:
    """A problem in a few words."""
    sizes = " x ".join(str(size) for size in told["shape"].values())
    layout, precision = told.get("layout", ""), told.get("precision", "ieee")
    return worded(told["operation"], sizes, told["dtype"], layout, precision, told.get("epilogue", ""))


def question(told: Mapping[str, Any]) -> str:
    """A problem on a device as the query of a link."""
    device = told["device"]
    return urlencode(
        {
            "operation": told["operation"],
            "dims": ",".join(f"{name}={size}" for name, size in told["shape"].items()),
            "dtype": told["dtype"], "layout": told.get("layout", ""),
            "precision": told.get("precision", "ieee"), "regime": told.get("regime", "cold"),
            "device": device["name"] if isinstance(device, Mapping) else device,
            **({"epilogue": told["epilogue"]} if told.get("epilogue") else {}),
        }
    )  # fmt: skip


def as_json(data: Any) -> Markup:
    """JSON that may stand in a page: nothing in it ends the element around it."""
    text = json.dumps(finite(data), separators=(",", ":"))
    for letter, escaped in (("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026")):
        text = text.replace(letter, escaped)
    return Markup(text)


#: Name in templates -> filter.
FILTERS = {
    "duration": shown_duration, "speed": answer_speed, "when": when, "problem": problem, "question": question,
    "json": as_json,
}  # fmt: skip


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
    if session is None and caller is not None and service.registry.is_open:
        cookie, session = service.sessions.begin("")
    shared = {
        "root": request.scope.get("root_path", ""), "version": __version__, "caller": caller,
        "open": service.registry.is_open, "csrf": session.csrf if session else "",
        "snapshot": service.cache.present.manifest.number, "here": request.scope["path"],
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


def session_needed(request: Request) -> LoginSession:
    """The session of a form.

    Raises:
        Refused: There is none.
    """
    from tuner.service.responses import Refused

    session = session_of(request)
    if session is None:
        raise Refused(403, "the form was not made by this server, or is too old; open the page again")
    return session
