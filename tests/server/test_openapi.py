"""The description of the HTTP protocol, and a fuzzer that believes every word of it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from astrarium.server.http.front import HttpFront
from tests.support.server.fakes import FakeService

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
BOUNDED = settings(max_examples=10, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
INFER = "/v2/models/{model}/infer"


class Steady(FakeService):
    """Whatever the fuzzer unloads is still there for its next request."""

    async def unload(self, model: str) -> None:
        self.card(model)


service = Steady()
schema = schemathesis.openapi.from_asgi("/openapi.json", HttpFront(service))


@schemathesis.hook
def map_path_parameters(context: Any, path_parameters: dict[str, Any] | None) -> dict[str, Any] | None:
    """Half of the names are of models that exist; else hardly a request would get as far as a tensor."""
    if path_parameters and len(str(path_parameters.get("model", ""))) % 2:
        path_parameters["model"] = "echo"
        if "version" in path_parameters:
            path_parameters["version"] = "1"
    return path_parameters


@schema.exclude(path=INFER).parametrize()
@BOUNDED
def test_no_request_breaks_the_server_or_its_description(case: schemathesis.Case[Any]) -> None:
    case.call_and_validate(checks=CHECKS)


def nearly_right(body: Any) -> Any:
    """A fuzzed body in which the first input has the name and the type that the model wants."""
    if isinstance(body, dict) and isinstance(body.get("inputs"), list) and body["inputs"]:
        first = body["inputs"][0]
        if isinstance(first, dict):
            numbers = [float(at) for at in range(len(str(first)) % 5)]
            first |= {"name": "IN", "datatype": "FP32", "shape": [1, len(numbers)], "data": numbers}
            first.pop("parameters", None)
            body["inputs"] = [first]
    return body


def test_no_inference_breaks_the_server_or_its_description() -> None:
    statuses: Counter[int] = Counter()

    @given(schema[INFER]["POST"].as_strategy())
    @settings(BOUNDED, max_examples=60)
    def fuzz(case: schemathesis.Case[Any]) -> None:
        if statuses.total() % 2:
            case.path_parameters = {"model": "echo"}
            case.body = nearly_right(case.body)
        response = case.call()
        statuses[response.status_code] += 1
        case.validate_response(response, checks=CHECKS)

    fuzz()
    assert statuses.keys() >= {200, 400, 404}, "the fuzzer must get through to a model, too"
    assert service.held == 0


def test_every_operation_is_described_once_with_its_errors() -> None:
    document = schema.raw_schema
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    names = Counter(operation["operationId"] for operation in operations)
    assert max(names.values()) == 1
    assert {"429", "500", "503", "504", "413", "415"} <= document["paths"][INFER]["post"]["responses"].keys()
    assert "Retry-After" in document["paths"][INFER]["post"]["responses"]["429"]["headers"]
    assert document["paths"]["/v2/health/live"]["get"]["security"] == []
