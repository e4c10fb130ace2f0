"""Calls that an answer offers next: the one place where `allowed_actions` get a method and an address."""

from enum import Enum

from gpuaas_contract.problems import AllowedAction
from gpuaas_contract.wire import API_PREFIX


class Offer(Enum):
    """A route, by the id that its operation has in the OpenAPI document."""

    CHANGE_OWN_PASSWORD = "POST", "/auth/password"
    END_SESSION = "DELETE", "/auth/session"
    READ_CHANGES = "GET", "/changes"
    CREATE_ENTITLEMENT = "POST", "/entitlements"
    REVOKE_SERVICE_ACCOUNT_KEY = "DELETE", "/service-accounts/{service_account_id}/keys/{key_id}"
    END_CREDENTIAL_VERSION = "DELETE", "/credentials/{credential_id}/versions/{number}"
    RETIRE_SSH_AUTHORITY = "POST", "/ssh-authorities/{owner_id}/retire"
    VERIFY_ARTIFACT = "POST", "/artifacts/{artifact_id}/verify"

    RESTART_ALLOCATION = "POST", "/allocations/{allocation_id}/restart"
    RESIZE_ALLOCATION = "POST", "/allocations/{allocation_id}/resize"
    RETRY_ALLOCATION = "POST", "/allocations/{allocation_id}/retry"
    RELEASE_ALLOCATION = "POST", "/allocations/{allocation_id}/release"
    ATTACH_VOLUME = "POST", "/volumes/{volume_id}/attach"
    DETACH_VOLUME = "POST", "/volumes/{volume_id}/detach"
    RETRY_VOLUME = "POST", "/volumes/{volume_id}/retry"
    DELETE_VOLUME = "DELETE", "/volumes/{volume_id}"

    ADD_MEMBERS = "POST", "/app-instances/{instance_id}/members"
    REQUEST_OPERATION = "POST", "/app-instances/{instance_id}/operations"
    ABANDON_INSTANCE = "POST", "/app-instances/{instance_id}/abandon"
    FORGET_MEMBER = "POST", "/members/{member_id}/forget"
    GET_OPERATION = "GET", "/operations/{operation_id}"
    RETRY_OPERATION = "POST", "/operations/{operation_id}/retry"
    CANCEL_OPERATION = "POST", "/operations/{operation_id}/cancel"

    @property
    def method(self) -> str:
        return self.value[0]

    @property
    def path(self) -> str:
        return API_PREFIX + self.value[1]

    def action(self, action: str, title: str, **ids: str | int) -> AllowedAction:
        """Name the call for programs (`action`) and for people (`title`), with the ids that its path has."""
        return AllowedAction(action=action, title=title, method=self.method, href=self.path.format(**ids))
