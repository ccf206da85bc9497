"""optuna-dashboard beside our pages: behind the same login, and for looking only."""

from __future__ import annotations

import functools
import io
import threading
from collections.abc import Callable, Iterable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import RedirectResponse, Response

from tuner.errors import NothingFound
from tuner.results.objectives import TIME
from tuner.results.record import OBJECTIVES_OF_STUDY, Role
from tuner.search.optuna_bridge import Shown
from tuner.service.access import reads, service_of
from tuner.service.responses import working
from tuner.service.state import Service
from tuner.service.tokens import Caller
from tuner.store import listing
from tuner.store.reading import Reader
from tuner.study.starting import observed, that_count

#: Studies that are shown before one is asked for: the last ones.
LAST = 20


@functools.cache
def shown(url: str) -> Shown:
    """What is shown of a database."""
    return Shown()


def show(store: Reader, name: str, at: Shown) -> int | None:
    """Shows a study with the trials that it has now.

    Returns:
        Its number; None if the database has no trial of it.
    """
    records = [each for each in store.records(study=name) if each.role is Role.TRIAL]
    if not records:
        return None
    objectives = objectives_of(name)
    trials = that_count(records, objectives).values()
    return at.add(name, objectives, [observed(each, objectives) for each in trials])


def show_last(store: Reader, at: Shown) -> int:
    """Shows the last studies; returns how many there are."""
    names = listing.last_studies(store, LAST)
    return sum(show(store, name, at) is not None for name in names)


def objectives_of(study: str) -> tuple[str, ...]:
    """The objectives that a study's name tells."""
    told = study.partition(OBJECTIVES_OF_STUDY)[2].partition(",")[0].split()
    return tuple(told) or TIME


router = APIRouter(include_in_schema=False)
Reads = Annotated[Caller, Depends(reads)]
#: Path that the dashboard is served under; by itself it knows none, so its own paths are put below this one.
HOME = "/optuna"
_OPENING = threading.Lock()


@router.get(f"{HOME}/study")
async def study(request: Request, caller: Reads, name: str = "") -> Response:
    """Leads from the name of a study to its page."""
    service = service_of(request)

    found = await working(service, lambda: show(service.store, name, shown(service.settings.db)))
    root = request.scope.get("root_path", "")
    where = f"{root}{HOME}/dashboard" + (f"/studies/{found}" if found is not None else "")
    return RedirectResponse(where, 303)


@router.get(HOME)
@router.get(f"{HOME}/{{path:path}}")
async def dashboard(request: Request, caller: Reads, path: str = "") -> Response:
    """Whatever of the dashboard is asked for by GET; it has no other methods here."""
    service, root = service_of(request), request.scope.get("root_path", "")
    if not path:
        return RedirectResponse(f"{root}{HOME}/dashboard", 303)
    query = request.scope["query_string"].decode("latin-1")
    status, headers, body = await working(service, lambda: _asked(service, f"/{path}", query))
    kept = {
        name: value
        for name, value in headers
        if name.lower() in ("content-type", "content-security-policy", "content-disposition")
    }
    kind = kept.get("Content-Type", "")
    if "html" in kind or path.endswith(".js"):
        body = _placed(body, f"{root}{HOME}")
    return Response(body, status, kept)


def _placed(body: bytes, home: str) -> bytes:
    """A page or script of the dashboard, with its own paths below ours."""
    text = body.decode()
    for own in ('src="/static/', "`/csv/"):
        text = text.replace(own, own.replace("/", f"{home}/", 1))
    text = text.replace("${this.baseURL}/api", f"{home}/api")
    return text.replace('url_prefix:"/dashboard"', f'url_prefix:"{home}/dashboard"').encode()


def _asked(service: Service, path: str, query: str) -> tuple[int, list[tuple[str, str]], bytes]:
    """Status, headers and body of a GET to the dashboard."""
    with _OPENING:
        storage = shown(service.settings.db).storage
        if not storage.get_all_studies() and not show_last(service.store, shown(service.settings.db)):
            raise NothingFound("no study is kept in this database; tune something first")
        application = _application(service.settings.db)
    told: list[Any] = []
    environ = {
        "REQUEST_METHOD": "GET", "PATH_INFO": path, "QUERY_STRING": query, "SCRIPT_NAME": "",
        "HTTP_ACCEPT_ENCODING": "",
        "SERVER_NAME": "localhost", "SERVER_PORT": "80", "SERVER_PROTOCOL": "HTTP/1.1",
        "wsgi.version": (1, 0), "wsgi.url_scheme": "http", "wsgi.input": io.BytesIO(),
        "wsgi.errors": io.StringIO(), "wsgi.multithread": True, "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }  # fmt: skip
    parts = application(environ, lambda status, headers, error=None: told.extend((status, headers)))
    try:
        body = b"".join(parts)
    finally:
        close = getattr(parts, "close", None)
        if close is not None:
            close()
    return int(str(told[0]).split()[0]), told[1], body


@functools.cache
def _application(url: str) -> Callable[..., Iterable[bytes]]:
    """The dashboard over the studies of a database; slow to load, so at its first use."""
    import optuna_dashboard

    found: Callable[..., Iterable[bytes]] = optuna_dashboard.wsgi(shown(url).storage)
    return found
