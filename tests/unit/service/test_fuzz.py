"""Every route of the interface with whatever its description allows, and with what it does not: no 5xx."""

import contextlib
from collections.abc import Iterator

import pytest
import schemathesis
from fixtures.server import Server, fill, serving
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable

from tuner.service import tokens
from tuner.store import Store

#: Requests to each route.
EXAMPLES = 5


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, str]]:
    folder = tmp_path_factory.mktemp("fuzz")
    db = f"sqlite:///{folder}/studies.db"
    fill(db)
    with Store.open(db) as store:
        secret = tokens.create(store, "fuzz", ["admin"], 1)
    with serving(db, folder, "--no-jobs") as running:
        yield running, secret


def test_no_request_makes_the_server_fail(server: tuple[Server, str]) -> None:
    running, secret = server
    headers = {"authorization": f"Bearer {secret}"}
    schema = schemathesis.openapi.from_url(f"{running.base}/openapi.json", headers=headers)
    seen: dict[str, int] = {}

    def asks(case: schemathesis.Case) -> None:
        name = f"{case.operation.method} {case.operation.path}"
        seen[name] = seen.get(name, 0) + 1
        answer = case.call(headers=headers, timeout=30)
        assert answer.status_code < 500, (case.as_curl_command(), answer.text)

    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.path.endswith("/events"):
            continue
        for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):
            drawn = given(case=operation.as_strategy(generation_mode=mode))(asks)
            tried = settings(
                max_examples=EXAMPLES, deadline=None, phases=[Phase.generate], database=None,
                suppress_health_check=list(HealthCheck),
            )(drawn)  # fmt: skip
            # A route without parameters cannot be asked wrongly.
            with contextlib.suppress(Unsatisfiable):
                tried()
    assert len(seen) >= 20
    assert running.get("/healthz").status_code == 200
    assert '"status": 500' not in running.log.read_text()
