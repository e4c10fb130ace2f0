"""Messages to a person about the code that they typed."""

from gpuaas_platform.identity.records import DeviceAuthorizationRecord, DeviceStatus

START_AGAIN = "start again in the terminal: gpuaas login"


def why_not(row: DeviceAuthorizationRecord, caller_id: str) -> str | None:
    """Say why this request can no longer be decided; None where it can."""
    if row.used_at is not None:
        return f"this code was used already, and each code works once; for another login, {START_AGAIN}"
    if row.expired:
        return f"this code has expired; {START_AGAIN}"
    if row.status == DeviceStatus.PENDING:
        return None
    if row.user_id == caller_id:
        return f"you have {row.status.value} this code already; the terminal notices within seconds"
    return (
        f"somebody else has {row.status.value} this code. If the request is yours, stop it in the terminal, "
        f"where it would log in as them, and {START_AGAIN}"
    )
