"""optuna-dashboard beside our pages: behind the same login, and for looking only."""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx
from fastapi import APIRouter
from fastapi.responses import Response

from tuner.errors import NothingFound
from tuner.results.measurement import Outcome
from tuner.results.objectives import TIME
from tuner.results.record import OBJECTIVES_OF_STUDY, Role
from tuner.search import Observation
from tuner.search.optuna_bridge import KERNEL, quiet
from tuner.service.pages import ReadPage
from tuner.service.responses import root_of
from tuner.store.reading import Reader
from tuner.study.starting import observed, that_count

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

router = APIRouter(include_in_schema=False)
#: What would need more than GET: to make, rename and delete studies, and to write notes.
DEAD = 'a[href$="/note"], [aria-label$=" study"], button:has([data-testid=AddBoxIcon], [data-testid=EditIcon])'
#: Path that the dashboard is served under; by itself it knows none, so its own paths are put below this one.
HOME = "/optuna"
#: Headers of the dashboard that are passed on.
HEADERS = ("content-type", "content-security-policy", "content-disposition")
#: Studies that are shown.
MOST_STUDIES = 50


def finished_trial(
    choices: Mapping[str, BaseDistribution], result: Observation, objectives: Sequence[str]
) -> FrozenTrial:
    """A finished trial in Optuna's form; its parameters are conditional on the kernel.

    Args:
        choices: Parameter -> the values that it may take; with the kernel's name in front.
        result: The config that was tried, with its result.
        objectives: The study's objectives.
    """
    from optuna.trial import TrialState, create_trial

    kernel, config, outcome, time_s, others = result
    params = {KERNEL: kernel} | {f"{kernel}.{name}": value for name, value in config.items()}
    state, values, few_s = TrialState.FAIL, list[float](), dict[int, float]()
    if outcome is Outcome.PRUNED and time_s is not None:
        # The dashboard shows the value that the trial had when it was stopped.
        state, few_s = TrialState.PRUNED, {0: time_s} if len(objectives) == 1 else {}
        values = list(few_s.values())
    elif outcome is Outcome.MEASURED and time_s is not None and len(others) + 1 == len(objectives):
        state, values = TrialState.COMPLETE, [time_s, *others]
    return create_trial(
        params=params, distributions={name: choices[name] for name in params}, values=values or None,
        intermediate_values=few_s, state=state, user_attrs={"outcome": outcome.value},
    )  # fmt: skip


class Shown:
    """Studies in Optuna's form, in memory.

    Attributes:
        storage: What the dashboard reads.
    """

    def __init__(self) -> None:
        """Shows none yet."""
        import optuna

        self.storage = optuna.storages.InMemoryStorage()
        self._lock = threading.Lock()

    def add(self, name: str, objectives: Sequence[str], trials: Sequence[Observation]) -> int:
        """Shows a study; made anew if there are more trials than were shown.

        Args:
            name: Its name.
            objectives: What it minimises.
            trials: All of its finished trials.

        Returns:
            The study's number in the storage.
        """
        import optuna

        with self._lock, quiet():
            known = {study.study_name: study._study_id for study in self.storage.get_all_studies()}
            if name in known and self.storage.get_n_trials(known[name]) == len(trials):
                return known[name]
            if name in known or len(known) >= MOST_STUDIES:
                self.storage.delete_study(known.get(name, min(known.values())))
            minimised = [optuna.study.StudyDirection.MINIMIZE] * len(objectives)
            study = optuna.create_study(storage=self.storage, study_name=name, directions=minimised)
            study.set_metric_names(list(objectives))
            choices = _tried_choices(trials)
            study.add_trials([finished_trial(choices, trial, objectives) for trial in trials])
            return study._study_id


def _tried_choices(trials: Sequence[Observation]) -> dict[str, BaseDistribution]:
    """Each parameter with the values that it took in any trial."""
    from optuna.distributions import CategoricalDistribution

    values: dict[str, set[Any]] = {KERNEL: {trial.kernel for trial in trials}}
    for trial in trials:
        for name, value in trial.config.items():
            values.setdefault(f"{trial.kernel}.{name}", set()).add(value)
    return {
        name: CategoricalDistribution(sorted(some, key=lambda value: (str(type(value)), value)))
        for name, some in values.items()
    }


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
    """A page or script of the dashboard: its own paths are below ours, it leads back, no button is dead."""
    style, back = "position: fixed; bottom: 8px; left: 80px; z-index: 9999", f"{home.removesuffix(HOME)}/"
    link = f'<style>{DEAD} {{ display: none }}</style><a style="{style}" href="{back}">Back to tile-tuner</a>'
    text = text.replace("</body>", f"{link}</body>")
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
