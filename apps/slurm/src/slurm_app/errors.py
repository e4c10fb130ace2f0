"""What the machine layer raises of its own, beside CommandError and MachineUnreachableError of the sdk."""


class SlurmAppError(Exception):
    """The root. `code` is stable; the message is for a person."""

    retryable = False

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


class RefusedError(SlurmAppError):
    """The input or the machine does not allow it; trying again changes nothing."""


class NotReadyError(SlurmAppError):
    """Not now: something is not yet, or no longer, as it has to be. Trying again may help."""

    retryable = True
