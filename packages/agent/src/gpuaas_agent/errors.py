"""Two families of failure: come back later, or never. Anything else is a bug and says so."""


class AgentError(Exception):
    """Something that could not be done, in words that a person can act on."""


class RetryLaterError(AgentError):
    """The same attempt may succeed in a while: a daemon restarts, the platform does not answer."""


class PermanentError(AgentError):
    """Trying again changes nothing until somebody changes something."""


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
