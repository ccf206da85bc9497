"""optuna-dashboard beside our pages: behind the same login, and for looking only."""

from __future__ import annotations

import functools
from dataclasses import replace

import httpx
from fastapi import APIRouter
from fastapi.responses import Response

from tuner.errors import NothingFound
from tuner.results.objectives import TIME
from tuner.results.record import OBJECTIVES_OF_STUDY, Role
from tuner.search.optuna_bridge import Shown
from tuner.service.pages import ReadPage
from tuner.service.responses import root_of
from tuner.store.reading import Reader
from tuner.study.starting import observed, that_count

router = APIRouter(include_in_schema=False)
#: Path that the dashboard is served under; by itself it knows none, so its own paths are put below this one.
HOME = "/optuna"
#: Headers of the dashboard that are passed on.
HEADERS = ("content-type", "content-security-policy", "content-disposition")


@functools.cache
def shown(url: str) -> Shown:
    """The studies that are shown of a database."""
    return Shown()


def show(store: Reader, name: str, at: Shown) -> int | None:
    """Shows a study with the trials that it has now.

    Returns:
        Its number; None if the database has no trial of it.
    """
    trials = [record for record in store.records(study=name) if record.role is Role.TRIAL]
    # Optuna's choices are texts and numbers.
    flat = [
        {key: of if isinstance(of, int | float) else str(of) for key, of in one.config.items()}
        for one in trials
    ]
    records = [replace(record, config=config) for record, config in zip(trials, flat, strict=True)]
    if not records:
        return None
    objectives = objectives_of(name)
    counting = that_count(records, objectives).values()
    return at.add(name, objectives, [observed(record, objectives) for record in counting])


def objectives_of(study: str) -> tuple[str, ...]:
    """The objectives that a study's name tells."""
    names = study.partition(OBJECTIVES_OF_STUDY)[2].partition(",")[0].split()
    return tuple(names) or TIME


@router.get(f"{HOME}/study")
def study(page: ReadPage, name: str = "") -> Response:
    """Leads from the name of a study to its page."""
    number = show(page.service.store, name, shown(page.service.settings.db))
    return page.lead(f"{HOME}/dashboard" + (f"/studies/{number}" if number is not None else ""))


@router.get(HOME)
@router.get(f"{HOME}/{{path:path}}")
def dashboard(page: ReadPage, path: str = "") -> Response:
    """Whatever of the dashboard is asked for by GET; it has no other methods here."""
    if not path:
        return page.lead(f"{HOME}/dashboard")
    home, studies = f"{root_of(page.request)}{HOME}", shown(page.service.settings.db)
    if not studies.storage.get_all_studies():
        raise NothingFound("no study is shown yet; open one from the page of its problem")
    reply = _client(page.service.settings.db).get(f"/{path}?{page.request.url.query}")
    headers = {name: reply.headers[name] for name in HEADERS if name in reply.headers}
    has_paths = "html" in headers.get("content-type", "") or path.endswith(".js")
    return Response(_placed(reply.text, home) if has_paths else reply.content, reply.status_code, headers)


def _placed(text: str, home: str) -> str:
    """A page or script of the dashboard, with its own paths below ours; a page has a way back."""
    style, back = "position: fixed; bottom: 8px; left: 8px", f"{home.removesuffix(HOME)}/"
    text = text.replace("</body>", f'<a style="{style}" href="{back}">Back to tile-tuner</a></body>')
    for own in ('src="/static/', "`/csv/"):
        text = text.replace(own, own.replace("/", f"{home}/", 1))
    text = text.replace("${this.baseURL}/api", f"{home}/api")
    return text.replace('url_prefix:"/dashboard"', f'url_prefix:"{home}/dashboard"')


@functools.cache
def _client(url: str) -> httpx.Client:
    """Asks the dashboard of the studies of a database; slow to load, so at its first use."""
    import optuna_dashboard

    transport = httpx.WSGITransport(optuna_dashboard.wsgi(shown(url).storage))
    return httpx.Client(transport=transport, base_url="http://localhost")
