"""Every route of the interface with whatever its description allows, and with what it does not: no 5xx."""

import contextlib

import schemathesis
from fixtures.server import Server
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable

#: Requests to each route.
EXAMPLES = 5


def test_no_request_makes_the_server_fail(guarded: tuple[Server, dict[str, str]]) -> None:
    server, secrets = guarded
    headers = {"authorization": f"Bearer {secrets['keeper']}"}
    schema = schemathesis.openapi.from_url(f"{server.base}/openapi.json", headers=headers)
    asked = set()

    def asks(case: schemathesis.Case) -> None:
        asked.add(f"{case.operation.method} {case.operation.path}")
        answer = case.call(headers=headers, timeout=30)
        assert answer.status_code < 500, (case.as_curl_command(), answer.text)

    for loaded in schema.get_all_operations():
        operation = loaded.ok()
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
    assert len(asked) >= 20
    assert '"status": 500' not in server.log.read_text()
