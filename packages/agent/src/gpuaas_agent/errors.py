"""Two families of failure: come back later, or never. Anything else is a bug and says so."""

import httpx
from pydantic import ValidationError

from gpuaas_contract.problems import Problem
from gpuaas_contract.trust import explain


class AgentError(Exception):
    """Something that could not be done, in words that a person can act on."""


class RetryLaterError(AgentError):
    """The same attempt may succeed in a while: a daemon restarts, the platform does not answer."""


class PermanentError(AgentError):
    """Trying again changes nothing until somebody changes something."""


class PeopleRefusedError(PermanentError):
    """A machine could not make some of its people; it has all the others."""

    def __init__(self, message: str, refused: dict[str, str]) -> None:
        super().__init__(message)
        self.refused = refused


class LxdUnavailableError(RetryLaterError):
    """LXD did not answer, or restarted under an operation."""


class LxdError(PermanentError):
    """LXD answered with an error."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status

    @property
    def not_found(self) -> bool:
        return self.status == 404


class PlatformUnavailableError(RetryLaterError):
    """The platform did not answer, or said that it cannot right now."""


class PlatformRefusedError(PermanentError):
    """The platform answered with a problem."""

    def __init__(self, message: str, *, status: int, code: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


def reason_of(error: Exception) -> str:
    """The words of an error for a message; its kind where it has none, as a time-out."""
    return explain(error) or str(error) or type(error).__name__


def raise_for_problem(answer: httpx.Response, content: bytes) -> None:
    """Raise the platform's problem as one of the two families."""
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
