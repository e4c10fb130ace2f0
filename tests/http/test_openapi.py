"""The OpenAPI document: committed as it is generated, and complete."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gpuaas_contract.problems import IDEMPOTENCY_HEADER, PROBLEM_MEDIA_TYPE
from gpuaas_platform.api.app import declare_app

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "openapi.json"
DOCUMENT = declare_app().openapi()
OPERATIONS = {
    f"{method.upper()} {path}": operation
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
}


def test_the_committed_document_is_the_generated_one() -> None:
    command = [str(Path(sys.executable).parent / "gpuaas-platform"), "openapi"]
    # Nothing of the environment: the command needs no settings, no database and no secrets server.
    generated = subprocess.run(command, check=True, capture_output=True, text=True, env={}).stdout
    assert REFERENCE.read_text() == generated, "run `make reference`, look at the difference, commit it"


def test_it_is_openapi_3_1_with_unique_operation_ids() -> None:
    assert DOCUMENT["openapi"].startswith("3.1.")
    names = [operation["operationId"] for operation in OPERATIONS.values()]
    assert len(names) == len(set(names)) > 40


@pytest.mark.parametrize("title", OPERATIONS)
def test_every_operation_is_described(title: str) -> None:
    operation = OPERATIONS[title]
    assert operation["summary"]
    assert operation["description"]
    assert operation["x-permission"]
    for media_type, media in operation.get("requestBody", {}).get("content", {}).items():
        if media_type != "application/octet-stream":
            _check_examples(media)
    for status, answer in operation["responses"].items():
        answer = _resolve(answer)
        assert answer["description"]
        assert "X-Correlation-Id" in answer["headers"]
        if int(status) >= 400:
            oauth = "/v1/oauth/" in title and "/device/" not in title
            assert set(answer["content"]) <= {PROBLEM_MEDIA_TYPE, *(["application/json"] if oauth else [])}
    _check_refusals(title, operation)


def _check_examples(media: dict[str, Any]) -> None:
    assert media["examples"]
    schema = {**media["schema"], "components": DOCUMENT["components"]}
    for name, example in media["examples"].items():
        try:
            jsonschema.Draft202012Validator(schema).validate(example["value"])
        except jsonschema.ValidationError as error:
            pytest.fail(f"example {name!r}: {error.json_path}: {error.message}; see FIELDS in api/examples.py")


def _check_refusals(title: str, operation: dict[str, Any]) -> None:
    answers = set(operation["responses"])
    parameters = {_resolve(parameter)["name"] for parameter in operation["parameters"]}
    assert "503" in answers
    if operation["x-permission"] != "anonymous":
        assert {"401", "429"} <= answers
        assert operation["security"]
    if "bearerToken" in str(operation.get("security")) and not title.startswith("GET"):
        assert {IDEMPOTENCY_HEADER, "If-Match"} <= parameters
        assert {"409", "412", "422"} <= answers
    for status in {"409", "429", "503"} & answers:
        assert "Retry-After" in _resolve(operation["responses"][status])["headers"]


def _resolve(part: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in part:
        return part
    found: Any = DOCUMENT
    for key in part["$ref"].removeprefix("#/").split("/"):
        found = found[key]
    assert isinstance(found, dict)
    return found
