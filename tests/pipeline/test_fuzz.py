"""Requests made up from the server's own OpenAPI description, right ones and wrong ones, against the real server."""

from collections import Counter
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from .conftest import Server

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
EXAMPLES = 60
FEW = 2
"""Tokens at most: a case is about the answer's form, not about its length."""


def shorten(body: Any) -> None:
    """Keep a generating request small, and let it find the model; what is wrong with it stays wrong."""
    if not isinstance(body, dict) or not ("prompt" in body or "messages" in body):
        return
    if isinstance(body.get("model"), str):
        body["model"] = "default"
    asked = [body.get(name) for name in ("max_tokens", "max_completion_tokens")]
    if asked == [None, None]:
        body["max_tokens"] = FEW
    for name in ("max_tokens", "max_completion_tokens", "n"):
        value = body.get(name)
        if type(value) is int and value > FEW:
            body[name] = FEW


def fuzz(operation: Any, mode: GenerationMode) -> Counter[int]:
    """Check the answers to made-up requests. Gives their statuses."""
    statuses: Counter[int] = Counter()

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=EXAMPLES if operation.body else 1,
        deadline=None,
        derandomize=True,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    def check(case: schemathesis.Case) -> None:
        shorten(case.body)
        response = case.call(timeout=60)
        statuses[response.status_code] += 1
        case.validate_response(response, checks=CHECKS)
        if 400 <= response.status_code < 500:
            assert set(response.json()["error"]) == {"message", "type", "param", "code"}

    check()
    return statuses


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["right", "wrong"])
def test_every_answer_is_as_described(server: Server, mode: GenerationMode) -> None:
    description = schemathesis.openapi.from_url(server.url + "/openapi.json")
    operations = [result.ok() for result in description.get_all_operations()]
    assert len(operations) >= 11
    for operation in operations:
        if mode is GenerationMode.NEGATIVE and not operation.body:
            continue  # there is nothing to get wrong
        statuses = fuzz(operation, mode)
        print(operation.label, dict(statuses))
        if mode is GenerationMode.POSITIVE and "{" not in operation.path:
            assert statuses[200] > 0, (operation.label, statuses)


def test_the_server_is_well_afterwards(server: Server) -> None:
    server.assert_idle()
