"""Reads the platform's problem details into the agent's two families of errors."""

import httpx
from pydantic import ValidationError

from gpuaas_agent.errors import PlatformRefusedError, PlatformUnavailableError
from gpuaas_contract.problems import Problem


def raise_for_problem(answer: httpx.Response, content: bytes) -> None:
    if answer.is_success:
        return
    where = f"{answer.request.method} {answer.request.url.path}"
    try:
        problem = Problem.model_validate_json(content)
    except ValidationError:
        # Not from the platform itself: a proxy in between, or something that is still starting.
        message = f"{where} answered {answer.status_code}"
        if answer.status_code >= 500:
            raise PlatformUnavailableError(message) from None
        raise PlatformRefusedError(message, status=answer.status_code, code="") from None
    message = f"{problem.title}: {problem.detail} ({where}, {problem.correlation_id})"
    if problem.retryable:
        raise PlatformUnavailableError(message)
    raise PlatformRefusedError(message, status=problem.status, code=problem.code)
