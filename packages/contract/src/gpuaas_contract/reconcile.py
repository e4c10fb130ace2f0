"""The reconcile lease: one controller at a time observes an instance and reports what it found."""

from pydantic import AwareDatetime

from gpuaas_contract.base import Resource

RECONCILE_LEASE_SECONDS = 60
"""Longer than that of an operation: nobody waits for it, and there is one for each instance."""


class ReconcileLease(Resource):
    instance_id: str
    holder: str
    """The process that holds it, as it calls itself."""
    claimed_at: AwareDatetime
    expires_at: AwareDatetime
    expired: bool = False
    """The holder stopped renewing it: any controller of the app can claim it."""


class ReconcileClaim(Resource):
    lease: ReconcileLease
    fencing_token: int
    """Only grows, over operations and reconcile leases alike."""
    lease_seconds: int
