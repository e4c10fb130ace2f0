"""An error code declares everything about itself where it is defined."""

from typing import Any

import pytest

from gpuaas_contract.problems import Code, DeclaredCode, Family


def test_a_code_is_its_value_on_the_wire() -> None:
    code = Code.RATE_LIMITED
    assert (str(code), code.value, code.problem_title) == ("rate_limited", "rate_limited", "rate limited")
    assert (code.status, code.family, code.retryable) == (429, Family.UNAVAILABLE, True)


@pytest.mark.parametrize("declared", ["forgotten", ("forgotten", 409)])
def test_a_code_without_a_status_or_a_family_cannot_be_defined(declared: Any) -> None:
    with pytest.raises(TypeError, match="required positional argument"):

        class _Codes(DeclaredCode):
            FORGOTTEN = declared
