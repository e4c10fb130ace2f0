"""Actions that answers offer: each is a route of the API, and its address is written in the contract only."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpuaas_platform
from gpuaas_contract.offers import Offer
from gpuaas_contract.wire import API_PREFIX

SOURCES = Path(gpuaas_platform.__file__).parent
OPENAPI = Path(__file__).parents[3] / "docs" / "reference" / "openapi.json"
BELOW_THE_API = {"service", "service.py", "storage", "storage.py", "rules", "rules.py", "records.py"}


@pytest.fixture(scope="module")
def operations() -> dict[str, tuple[str, str]]:
    paths = json.loads(OPENAPI.read_text())["paths"]
    return {
        operation["operationId"]: (method.upper(), path)
        for path, methods in paths.items()
        for method, operation in methods.items()
    }


@pytest.mark.parametrize("offer", Offer, ids=lambda offer: offer.name)
def test_an_offer_is_the_route_that_it_names(offer: Offer, operations: dict[str, tuple[str, str]]) -> None:
    assert (offer.method, offer.path) == operations[offer.name.lower()]


def test_an_action_has_the_ids_of_its_path() -> None:
    action = Offer.END_CREDENTIAL_VERSION.action("end", "End version 2", credential_id="crd_1", number=2)
    assert (action.action, action.title) == ("end", "End version 2")
    assert (action.method, action.href) == ("DELETE", "/v1/credentials/crd_1/versions/2")
    with pytest.raises(KeyError):
        Offer.END_CREDENTIAL_VERSION.action("end", "End version 2", credential_id="crd_1")


def _addresses(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.search(f"{API_PREFIX}/", node.value):
            yield f"{path.relative_to(SOURCES)}:{node.lineno}"


def test_no_address_is_written_below_the_api() -> None:
    below = [path for path in SOURCES.rglob("*.py") if BELOW_THE_API.intersection(path.relative_to(SOURCES).parts)]
    assert len(below) > 100
    assert [place for path in below for place in _addresses(path)] == []
