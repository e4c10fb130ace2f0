"""The requests on an instance that a preflight can try, each as it is made for real."""

from gpuaas_contract.base import Resource
from gpuaas_contract.operations import OperationCreate
from gpuaas_contract.problems import Code
from gpuaas_platform.domain.errors import Refusal
from gpuaas_platform.domain.policy import Caller
from gpuaas_platform.services import operations
from gpuaas_platform.services.preflights import InstanceRequest
from gpuaas_platform.storage.database import Transaction


async def ask(tx: Transaction, caller: Caller, instance_id: str, body: InstanceRequest) -> Resource:
    if isinstance(body, OperationCreate):
        return await operations.request_operation(tx, caller, instance_id, body)
    raise Refusal(Code.INVALID_REQUEST, "this cannot be asked for yet")
