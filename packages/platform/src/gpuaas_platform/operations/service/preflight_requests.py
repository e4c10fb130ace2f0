"""The requests on an instance that a preflight can try, each as it is made for real."""

from gpuaas_contract.base import Resource
from gpuaas_contract.bulk import MembersAdd
from gpuaas_contract.operations import OperationCreate
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.identity.rules.policy import Caller
from gpuaas_platform.instances.service.preflights import InstanceRequest
from gpuaas_platform.operations.service import bulks, requests


async def ask(tx: Transaction, caller: Caller, instance_id: str, body: InstanceRequest) -> Resource:
    if isinstance(body, OperationCreate):
        return await requests.request_operation(tx, caller, instance_id, body)
    if isinstance(body, MembersAdd):
        return await bulks.add_members(tx, caller, instance_id, body)
    return await bulks.request_on_members(tx, caller, instance_id, body)
