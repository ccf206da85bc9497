"""Every route of the interface with whatever its description allows, and with what it does not.

No request is answered by 5xx, and each answer is of a status, a type and a form that the description has.
"""

import contextlib

import schemathesis
from fixtures.server import ASKED, Server
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

#: Requests to each route.
EXAMPLES = 5
#: What holds for every answer.
CHECKS = [
    not_a_server_error, checks.status_code_conformance, checks.content_type_conformance,
    checks.response_schema_conformance,
]  # fmt: skip


def test_requests_are_answered_as_the_description_says(guarded: tuple[Server, dict[str, str]]) -> None:
    server, secrets = guarded
    headers = {"authorization": f"Bearer {secrets['keeper']}"}
    schema = schemathesis.openapi.from_url(f"{server.base}/openapi.json", headers=headers)
    answered = set()

    def asks(case: schemathesis.Case) -> None:
        answer = case.call(headers=headers, timeout=30)
        case.validate_response(answer, checks=CHECKS, headers=headers)
        answered.add((case.operation.label, answer.status_code))

    with server.client(secrets["keeper"]) as client:
        record = client.get("/v1/best", params=ASKED).json()["record_id"]
        job = client.post("/v1/jobs", json={"problem": {"operation": "gemm", "dims": [9, 9, 9]}}).json()["id"]
    for path in ("/v1/best", "/v1/export", "/v1/champions/history"):
        asks(schema[path]["GET"].Case(query=ASKED))
    asks(schema["/v1/records/{record_id}"]["GET"].Case(path_parameters={"record_id": record}))
    for path, method in (("/v1/jobs/{job_id}", "GET"), ("/v1/jobs/{job_id}/cancel", "POST")):
        asks(schema[path][method].Case(path_parameters={"job_id": job}))
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
    assert len({label for label, status in answered if status in (200, 202)}) >= 20
    assert '"status": 500' not in server.log.read_text()
