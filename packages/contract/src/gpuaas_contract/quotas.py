"""Quotas: how much of each thing a project may have at once."""

from pydantic import Field

from gpuaas_contract.base import Request, Resource


class QuotaSet(Request):
    """All limits at once; what is left out or null is not limited."""

    cpus: int | None = Field(default=None, ge=0, le=10_000_000)
    memory_mib: int | None = Field(default=None, ge=0, le=2_000_000_000)
    disk_gib: int | None = Field(default=None, ge=0, le=2_000_000_000)
    gpus: int | None = Field(default=None, ge=0, le=10_000_000)
    allocations: int | None = Field(default=None, ge=0, le=10_000_000)


class QuotaLimits(Resource):
    cpus: int | None = None
    memory_mib: int | None = None
    disk_gib: int | None = None
    gpus: int | None = None
    allocations: int | None = None


class QuotaUse(Resource):
    cpus: int
    memory_mib: int
    disk_gib: int
    gpus: int
    allocations: int


class Quota(Resource):
    """Machines whose release was accepted do not count any more; volumes count until they are deleted."""

    project_id: str
    revision: int
    """Of the limits: 0 until somebody sets them. Give it as If-Match to change them as you saw them."""
    limits: QuotaLimits
    used: QuotaUse
