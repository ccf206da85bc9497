"""Reports are posted with a signature, again where that may help, and never fail."""

import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import pytest

from tuner.errors import InputError
from tuner.night.reporting import SIGNATURE, check_url, notify


class Listener(BaseHTTPRequestHandler):
    """Answers with what is next in `answers`, and keeps what came."""

    answers: ClassVar[list[int]] = []
    came: ClassVar[list[tuple[bytes, str | None]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.came.append((body, self.headers[SIGNATURE]))
        self.send_response(self.answers.pop(0))
        self.end_headers()

    def log_message(self, *told: object) -> None:
        """Says nothing."""


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr("tuner.night.reporting.PAUSES_S", (0.0, 0.0))
    Listener.answers, Listener.came = [], []
    server = HTTPServer(("127.0.0.1", 0), Listener)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/hook"
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_body_is_signed_and_sent_again_after_a_server_error(url: str) -> None:
    Listener.answers[:] = [503, 200]
    assert notify(url, {"alerts": []}, "secret") == ""
    (first, _), (second, signed) = Listener.came
    assert first == second
    assert json.loads(second) == {"alerts": []}
    assert signed == "sha256=" + hmac.new(b"secret", second, hashlib.sha256).hexdigest()


@pytest.mark.parametrize("url", ["file:///etc/passwd", "nowhere", "http://"])
def test_an_address_is_checked_before_the_night(url: str) -> None:
    with pytest.raises(InputError, match="takes an address"):
        check_url(url)
