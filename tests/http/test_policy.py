"""Every route by every kind of principal: as committed, as the policy table says, and telling strangers nothing."""

import os
from pathlib import Path

import pytest
from fastapi import APIRouter, FastAPI

from gpuaas_platform.api.app import declare_app
from gpuaas_platform.api.routing import check_permissions
from gpuaas_platform.identity.rules.policy import POLICY, Permission
from gpuaas_stack.settings import Settings
from tests.support.policy_matrix import EXCEPTIONS, Matrix, rows, run_walk, to_markdown
from tests.support.processes import cloned_platform

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "policy-matrix.md"


@pytest.fixture(scope="module")
def matrix(servers: Settings) -> Matrix:
    """One walk through one platform for all tests: it takes most of a minute, and they look at its notes only."""
    with cloned_platform(servers) as settings:
        return run_walk(settings)


def test_the_committed_matrix_is_what_the_platform_answers(matrix: Matrix) -> None:
    generated = to_markdown(matrix, rows())
    if os.environ.get("GPUAAS_WRITE_REFERENCE"):
        REFERENCE.write_text(generated)
    assert REFERENCE.read_text() == generated, "run `make reference`, look at the difference, commit it"


def test_every_cell_is_what_the_policy_table_says(matrix: Matrix) -> None:
    assert not matrix.disagreements, "\n".join(matrix.disagreements)
    titles = set(matrix.cells)
    assert {title for title, _ in EXCEPTIONS} <= titles, "an exception names a route that is gone"
    assert len(EXCEPTIONS) <= 3, "the list of exceptions only shrinks"


def test_strangers_learn_nothing(matrix: Matrix) -> None:
    assert not matrix.leaks, "\n".join(matrix.leaks)
    assert matrix.compared > 50


def test_every_permission_is_in_the_table_and_used_by_a_route() -> None:
    open_ones = {
        Permission.ANONYMOUS,
        Permission.AUTHENTICATED,
        Permission.PERSON,
        Permission.OWN_LOGIN,
        Permission.AGENT,
    }
    assert set(Permission) == set(POLICY) | open_ones
    assert {row.permission for row in rows()} == set(Permission)


def test_a_route_without_a_permission_does_not_come_up() -> None:
    async def endpoint() -> None: ...

    def fails(add: object, what: str) -> None:
        app = declare_app()
        add(app)  # type: ignore[operator]
        with pytest.raises(RuntimeError, match=what):
            check_permissions(app)

    def include(app: FastAPI) -> None:
        router = APIRouter()
        router.add_api_route("/naked", endpoint)
        app.include_router(router)

    fails(lambda app: app.add_api_route("/naked", endpoint), "/naked declares no permission")
    fails(lambda app: app.add_api_websocket_route("/naked", endpoint), "/naked declares no permission")
    fails(lambda app: app.add_route("/naked", endpoint), "not a route that can declare")
    fails(lambda app: app.mount("/naked", FastAPI()), "not a route that can declare")
    fails(include, "not a route that can declare|declares no permission")
