"""The application: routes, pages, errors, and the guard before them."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from tuner.errors import TunerError
from tuner.service import answers, dashboard, errors, jobs, logins, machine, pages, records, reference
from tuner.service.first_answers import KnownBodies
from tuner.service.guard import Guard
from tuner.service.state import Service
from tuner.version import __version__

ABOUT = """Which kernel and config to use for a problem on a device, from measured records; and jobs that
measure more. Answers are those of the command line's `--json`. A kernel is code: none is taken over HTTP.

Send a token as `Authorization: Bearer TOKEN`. Without tokens, only the server's own machine is answered."""


def create_app(service: Service) -> Guard:
    """The application of a server.

    Args:
        service: What it holds; it stays open as long as the application is used.
    """
    app = FastAPI(
        title="tile-tuner", version=__version__, description=ABOUT, root_path=service.settings.root_path,
        docs_url=None, redoc_url=None, openapi_url=None,
    )  # fmt: skip
    app.state.service = service
    app.state.bodies = KnownBodies()
    app.state.streams = 0
    app.state.error_page = pages.error_page
    for module in (machine, answers, records, jobs, pages, logins, reference, dashboard):
        app.include_router(module.router)
    app.add_exception_handler(TunerError, errors.tuner_error)
    app.add_exception_handler(errors.Refused, errors.refused)
    app.add_exception_handler(RequestValidationError, errors.invalid)
    app.add_exception_handler(HTTPException, errors.http_error)
    app.add_exception_handler(Exception, errors.trouble)
    return Guard(app, service.settings, service.metrics)
