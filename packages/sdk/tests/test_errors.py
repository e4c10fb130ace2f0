"""The exception tree mirrors the contract."""

import pytest

from gpuaas_contract.problems import Code, Family, Problem
from gpuaas_sdk import errors
from gpuaas_sdk.transport import error_from_answer


@pytest.mark.parametrize("family", Family)
def test_every_family_of_the_contract_has_an_exception(family: Family) -> None:
    assert errors._BY_FAMILY[family].__base__ is errors.ApiError


@pytest.mark.parametrize("code", Code)
def test_every_code_raises_an_exception_of_its_family(code: Code) -> None:
    assert issubclass(errors.exception_for(code), errors._BY_FAMILY[code.family])


def test_every_exception_is_in_the_drawn_tree() -> None:
    drawn = errors.__doc__ or ""
    classes = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]
    assert [c.__name__ for c in classes if c.__name__ not in drawn] == []


def test_a_stale_lease_is_a_conflict_and_a_lost_lease() -> None:
    assert issubclass(errors.StaleLeaseError, errors.ConflictError)
    assert issubclass(errors.StaleLeaseError, errors.LeaseLostError)


def test_a_problem_keeps_what_a_person_needs() -> None:
    problem = Problem(
        type="x", title="t", status=409, detail="held by web-1", code=Code.LEASE_HELD, correlation_id="cor_9"
    )
    error = errors.error_from_problem(problem)
    assert isinstance(error, errors.LeaseHeldError)
    assert str(error) == "held by web-1 (lease_held, cor_9)"


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (401, errors.UnauthenticatedError),
        (403, errors.ForbiddenError),
        (404, errors.NotFoundError),
        (409, errors.ConflictError),
        (502, errors.UnavailableError),
        (503, errors.UnavailableError),
        (418, errors.ProtocolError),
    ],
)
def test_an_answer_without_a_problem_is_mapped_by_its_status(status: int, expected: type[Exception]) -> None:
    assert isinstance(error_from_answer(status, {}, b"<html>bad gateway</html>"), expected)


def test_a_code_from_the_future_keeps_its_detail() -> None:
    error = error_from_answer(409, {"x-correlation-id": "cor_1"}, b'{"code": "new", "detail": "too warm"}')
    assert isinstance(error, errors.ConflictError)
    assert error.detail == "too warm"
