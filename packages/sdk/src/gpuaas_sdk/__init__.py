"""The SDK of GPUaaS: async client, machine access and the reconcile runtime for app controllers.

The names below are the public surface; they are imported when they are first used, so that a program
that needs only the client does not pay for SSH.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuaas_sdk.changes import ChangeFeed, Relist
    from gpuaas_sdk.client import GpuaasClient
    from gpuaas_sdk.credentials import (
        ClientSecretCredentials,
        PasswordCredentials,
        RefreshTokenCredentials,
        ServiceAccountCredentials,
        StaticToken,
    )
    from gpuaas_sdk.device import DeviceLogin
    from gpuaas_sdk.errors import (
        AlreadyDeliveredError,
        ApiError,
        ConflictError,
        ForbiddenError,
        GpuaasError,
        InvalidRequestError,
        LeaseHeldError,
        LeaseLostError,
        MachineFencedError,
        NotFoundError,
        ProtocolError,
        SignatureError,
        StaleLeaseError,
        TransportError,
        UnauthenticatedError,
        UnavailableError,
    )
    from gpuaas_sdk.machines.base import (
        CommandError,
        CommandResult,
        Machine,
        MachineUnreachableError,
        ObservedMachine,
        parse_values,
    )
    from gpuaas_sdk.machines.facts import MachineFacts, read_facts
    from gpuaas_sdk.machines.parallel import on_each
    from gpuaas_sdk.observations import Observation
    from gpuaas_sdk.retry import RetryPolicy
    from gpuaas_sdk.runtime.context import OperationContext, StepHandle
    from gpuaas_sdk.runtime.controller import Controller
    from gpuaas_sdk.runtime.errors import (
        ControllerMisconfiguredError,
        OperationCancelled,
        OperationFailed,
        RetryLater,
    )
    from gpuaas_sdk.runtime.observing import ObserveContext
    from gpuaas_sdk.runtime.phases import Phase, member_in_work, run_phases
    from gpuaas_sdk.runtime.preflights import PreflightContext, preflight_handler
    from gpuaas_sdk.runtime.program import run_controller
    from gpuaas_sdk.runtime.receipts import MachineReceipt, ReceiptCheck, probe, prove_removal
    from gpuaas_sdk.secret_value import SecretValue

_HOME = {
    "changes": ["ChangeFeed", "Relist"],
    "client": ["GpuaasClient"],
    "credentials": [
        "ClientSecretCredentials",
        "PasswordCredentials",
        "RefreshTokenCredentials",
        "ServiceAccountCredentials",
        "StaticToken",
    ],
    "device": ["DeviceLogin"],
    "errors": [
        "AlreadyDeliveredError",
        "ApiError",
        "ConflictError",
        "ForbiddenError",
        "GpuaasError",
        "InvalidRequestError",
        "LeaseHeldError",
        "LeaseLostError",
        "MachineFencedError",
        "NotFoundError",
        "ProtocolError",
        "SignatureError",
        "StaleLeaseError",
        "TransportError",
        "UnauthenticatedError",
        "UnavailableError",
    ],
    "machines.base": [
        "CommandError",
        "CommandResult",
        "Machine",
        "MachineUnreachableError",
        "ObservedMachine",
        "parse_values",
    ],
    "machines.facts": ["MachineFacts", "read_facts"],
    "machines.parallel": ["on_each"],
    "observations": ["Observation"],
    "retry": ["RetryPolicy"],
    "runtime.context": ["OperationContext", "StepHandle"],
    "runtime.controller": ["Controller"],
    "runtime.observing": ["ObserveContext"],
    "runtime.preflights": ["PreflightContext", "preflight_handler"],
    "runtime.errors": ["ControllerMisconfiguredError", "OperationCancelled", "OperationFailed", "RetryLater"],
    "runtime.phases": ["Phase", "member_in_work", "run_phases"],
    "runtime.program": ["run_controller"],
    "runtime.receipts": ["MachineReceipt", "ReceiptCheck", "probe", "prove_removal"],
    "secret_value": ["SecretValue"],
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "AlreadyDeliveredError",
    "ApiError",
    "ChangeFeed",
    "ClientSecretCredentials",
    "CommandError",
    "CommandResult",
    "ConflictError",
    "Controller",
    "ControllerMisconfiguredError",
    "DeviceLogin",
    "ForbiddenError",
    "GpuaasClient",
    "GpuaasError",
    "InvalidRequestError",
    "LeaseHeldError",
    "LeaseLostError",
    "Machine",
    "MachineFacts",
    "MachineFencedError",
    "MachineReceipt",
    "MachineUnreachableError",
    "NotFoundError",
    "Observation",
    "ObserveContext",
    "ObservedMachine",
    "OperationCancelled",
    "OperationContext",
    "OperationFailed",
    "PasswordCredentials",
    "Phase",
    "PreflightContext",
    "ProtocolError",
    "ReceiptCheck",
    "RefreshTokenCredentials",
    "Relist",
    "RetryLater",
    "RetryPolicy",
    "SecretValue",
    "ServiceAccountCredentials",
    "SignatureError",
    "StaleLeaseError",
    "StaticToken",
    "StepHandle",
    "TransportError",
    "UnauthenticatedError",
    "UnavailableError",
    "member_in_work",
    "on_each",
    "parse_values",
    "preflight_handler",
    "probe",
    "prove_removal",
    "read_facts",
    "run_controller",
    "run_phases",
]


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)
