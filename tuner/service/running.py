"""Runs a server until it is told to end."""

from __future__ import annotations

import gc
import json
import logging
import sys
import time

import uvicorn

from tuner.errors import EnvironmentTrouble
from tuner.service.app import create_app
from tuner.service.settings import Settings
from tuner.service.state import Service

#: Seconds that requests may take to end when the server ends.
END_WITHIN_S = 5
#: Seconds after which a thread that computes lets others go on.
SWITCH_S = 0.0005
#: Connections and requests at once; more are told to come back.
MOST_AT_ONCE = 2000


class JsonLines(logging.Formatter):
    """One line of JSON for each message."""

    def format(self, record: logging.LogRecord) -> str:
        """The line; a message that is JSON already keeps its keys."""
        told = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
        }
        if isinstance(record.msg, dict):
            told |= record.msg
        else:
            told |= {"from": record.name, "message": record.getMessage()}
        if record.exc_info:
            told["traceback"] = self.formatException(record.exc_info)
        return json.dumps(told)


def run(settings: Settings) -> None:
    """Serves until Ctrl-C or SIGTERM.

    Raises:
        InputError: The settings would let strangers in.
        StoreTrouble: The database cannot be used.
        EnvironmentTrouble: The port is taken.
    """
    with Service.open(settings) as service:
        _log_json_lines()
        # A thread that computes an answer lets others go on after this time, not after Python's 5 ms.
        sys.setswitchinterval(SWITCH_S)
        server = uvicorn.Server(
            uvicorn.Config(
                create_app(service), host=settings.host, port=settings.port, log_config=None, access_log=False,
                proxy_headers=settings.proxied, forwarded_allow_ips="127.0.0.1,::1", server_header=False,
                timeout_graceful_shutdown=END_WITHIN_S, limit_concurrency=MOST_AT_ONCE, lifespan="on",
                timeout_keep_alive=30, h11_max_incomplete_event_size=64 << 10,
            )
        )  # fmt: skip
        # What was read until now stays: looking through it for garbage would hold up answers, for a tenth of a
        # second each time.
        gc.collect()
        gc.freeze()
        gc.enable()
        try:
            server.run()
        except SystemExit as error:
            raise EnvironmentTrouble(
                f"the server could not bind to {settings.host} port {settings.port} (its own words are above); "
                "choose another with --host or --port"
            ) from error


def _log_json_lines() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for name in ("tuner.service", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.INFO)
