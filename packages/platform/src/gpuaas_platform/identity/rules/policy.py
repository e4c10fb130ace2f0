"""Who may do what. One table; a route names its permission, services ask with the scope."""

from dataclasses import dataclass, field
from enum import StrEnum

from gpuaas_contract.identity import PrincipalKind, Role
from gpuaas_contract.problems import Code
from gpuaas_platform.core.errors import Refusal, not_found


class Permission(StrEnum):
    ANONYMOUS = "anonymous"
    """Anybody may call the route; it authenticates by what is in the body, or tells nothing."""
    AUTHENTICATED = "authenticated"
    """Any known principal; what it gets is filtered by what it may see."""
    PERSON = "person"
    """Any user, about what is their own."""
    OWN_LOGIN = "own_login"
    """Any user, about their present login: also while a one-time password has not been changed yet."""
    AGENT = "agent"
    """A node agent, about its own node only."""

    TENANT_CREATE = "tenant.create"
    TENANT_READ = "tenant.read"
    TENANT_UPDATE = "tenant.update"
    TENANT_DELETE = "tenant.delete"
    PROJECT_CREATE = "project.create"
    PROJECT_READ = "project.read"
    PROJECT_UPDATE = "project.update"
    PROJECT_DELETE = "project.delete"
    USER_MANAGE = "user.manage"
    MEMBERSHIP_CREATE = "membership.create"
    MEMBERSHIP_DELETE = "membership.delete"
    SERVICE_ACCOUNT_CREATE = "service_account.create"
    SERVICE_ACCOUNT_READ = "service_account.read"
    SERVICE_ACCOUNT_MANAGE = "service_account.manage"
    """Its keys and secrets, disabling and deleting it."""
    NODE_MANAGE = "node.manage"
    NODE_READ = "node.read"
    ALLOCATION_CREATE = "allocation.create"
    ALLOCATION_READ = "allocation.read"
    ALLOCATION_UPDATE = "allocation.update"
    """Rename, restart, resize, try again."""
    ALLOCATION_RELEASE = "allocation.release"
    ALLOCATION_ACCESS = "allocation.access"
    """As the machine's own user. Who has a grant needs no role for what it gives."""
    GRANT_MANAGE = "grant.manage"
    SSH_AUTHORITY_READ = "ssh_authority.read"
    SSH_AUTHORITY_MANAGE = "ssh_authority.manage"
    """Rotate it, and retire the old one."""
    VOLUME_CREATE = "volume.create"
    VOLUME_READ = "volume.read"
    VOLUME_UPDATE = "volume.update"
    """Attach, detach, try again."""
    VOLUME_DELETE = "volume.delete"
    USAGE_READ = "usage.read"
    QUOTA_READ = "quota.read"
    QUOTA_SET = "quota.set"
    APP_PUBLISH = "app.publish"
    """Publish, deprecate and retire versions: a publisher for the apps that were named to it."""
    ENTITLEMENT_MANAGE = "entitlement.manage"
    ARTIFACT_READ = "artifact.read"
    ARTIFACT_MANAGE = "artifact.manage"
    """Push, register, verify, promote, retire, delete; and say which keys are trusted."""
    INSTANCE_DEPLOY = "instance.deploy"
    INSTANCE_READ = "instance.read"
    PEOPLE_READ = "people.read"
    """Who may use an instance, with names and numbers on its machines."""
    TUNNEL_OPEN = "tunnel.open"
    """Reach a port that an app declares for people, through the platform. No login on the machine comes with it."""
    OPERATION_REQUEST = "operation.request"
    OPERATION_START = "operation.start"
    """Ask for an operation that keeps an instance as it is meant to be: a repair. Also the app's own account may; what
    changes what the owner wants takes `operation.request`."""
    OPERATION_WORK = "operation.work"
    """Claim, report and finish operations: an app's own service account only."""
    CREDENTIAL_READ = "credential.read"
    """Its name, public keys and fingerprints. Nobody reads the key itself: a lease holder has it delivered."""
    CREDENTIAL_MANAGE = "credential.manage"
    SECRET_ROTATE = "secret.rotate"  # noqa: S105 - a permission
    SECRET_READ = "secret.read"  # noqa: S105 - a permission
    """The value of a secret, by a person who has one of the roles that the app's manifest names for it: of those in the
    table none may where it names none."""
    AUDIT_READ = "audit.read"
    METRICS_READ = "metrics.read"

    @property
    def words(self) -> str:
        """Say it as a sentence does: `tunnel.open` is "open tunnels"."""
        noun, _, verb = self.value.rpartition(".")
        return f"{verb} {_PLURALS.get(noun, noun.replace('_', ' ') + 's')}"


_PLURALS = {
    "audit": "the audit trail",
    "metrics": "metrics",
    "people": "the people of instances",
    "ssh_authority": "SSH authorities",
    "usage": "usage",
}


CONTROLLER = "controller"
"""The role of a service account that is bound to an app, in its project or tenant, for that app only."""

_ADMINS = frozenset({Role.PLATFORM_ADMIN, Role.TENANT_ADMIN, Role.PROJECT_ADMIN})
_USERS = _ADMINS | {Role.PROJECT_MEMBER}
_VIEWERS = _USERS | {Role.PROJECT_VIEWER, CONTROLLER}
_PLATFORM = frozenset({Role.PLATFORM_ADMIN})
_TENANT_ADMINS = frozenset({Role.PLATFORM_ADMIN, Role.TENANT_ADMIN})
PROJECT_ROLES = frozenset({Role.PROJECT_ADMIN, Role.PROJECT_MEMBER, Role.PROJECT_VIEWER})

POLICY: dict[Permission, frozenset[str]] = {
    Permission.TENANT_CREATE: _PLATFORM,
    Permission.TENANT_READ: _VIEWERS,
    Permission.TENANT_UPDATE: _TENANT_ADMINS,
    Permission.TENANT_DELETE: _PLATFORM,
    Permission.PROJECT_CREATE: _TENANT_ADMINS,
    Permission.PROJECT_READ: _VIEWERS,
    Permission.PROJECT_UPDATE: _ADMINS,
    Permission.PROJECT_DELETE: _TENANT_ADMINS,
    Permission.USER_MANAGE: _PLATFORM,
    Permission.MEMBERSHIP_CREATE: _ADMINS,
    Permission.MEMBERSHIP_DELETE: _ADMINS,
    Permission.SERVICE_ACCOUNT_CREATE: _ADMINS,
    Permission.SERVICE_ACCOUNT_READ: _ADMINS,
    Permission.SERVICE_ACCOUNT_MANAGE: _ADMINS,
    Permission.NODE_MANAGE: _PLATFORM,
    Permission.NODE_READ: _PLATFORM,
    Permission.ALLOCATION_CREATE: _ADMINS,
    Permission.ALLOCATION_READ: _VIEWERS,
    Permission.ALLOCATION_UPDATE: _ADMINS,
    Permission.ALLOCATION_RELEASE: _ADMINS,
    Permission.ALLOCATION_ACCESS: _ADMINS,
    Permission.GRANT_MANAGE: _ADMINS,
    Permission.SSH_AUTHORITY_READ: _VIEWERS,
    Permission.SSH_AUTHORITY_MANAGE: _ADMINS,
    Permission.VOLUME_CREATE: _ADMINS,
    Permission.VOLUME_READ: _VIEWERS,
    Permission.VOLUME_UPDATE: _ADMINS,
    Permission.VOLUME_DELETE: _ADMINS,
    Permission.USAGE_READ: _VIEWERS,
    Permission.QUOTA_READ: _VIEWERS,
    Permission.QUOTA_SET: _TENANT_ADMINS,
    Permission.APP_PUBLISH: frozenset({Role.PLATFORM_ADMIN, Role.APP_PUBLISHER}),
    Permission.ENTITLEMENT_MANAGE: frozenset({Role.PLATFORM_ADMIN, Role.APP_PUBLISHER}),
    Permission.ARTIFACT_READ: _VIEWERS | {Role.APP_PUBLISHER},
    Permission.ARTIFACT_MANAGE: _ADMINS | {Role.APP_PUBLISHER},
    Permission.INSTANCE_DEPLOY: _ADMINS,
    Permission.INSTANCE_READ: _VIEWERS,
    Permission.PEOPLE_READ: _USERS | {CONTROLLER},
    Permission.TUNNEL_OPEN: _USERS,
    Permission.OPERATION_REQUEST: _ADMINS,
    Permission.OPERATION_START: _ADMINS | {CONTROLLER},
    Permission.OPERATION_WORK: frozenset({CONTROLLER}),
    Permission.CREDENTIAL_READ: _VIEWERS,
    Permission.CREDENTIAL_MANAGE: _ADMINS,
    Permission.SECRET_ROTATE: _ADMINS,
    Permission.SECRET_READ: _USERS | {Role.PROJECT_VIEWER},
    Permission.AUDIT_READ: _ADMINS,
    Permission.METRICS_READ: _PLATFORM,
}
PEOPLE_ONLY = frozenset({Permission.PERSON, Permission.OWN_LOGIN, Permission.SECRET_READ})
"""Permissions that no service account has, whatever its role is."""


_WORK = frozenset({Permission.OPERATION_WORK, Permission.OPERATION_START})


@dataclass(frozen=True, slots=True)
class Scope:
    """Where a thing belongs. An empty scope is the platform itself."""

    tenant_id: str | None = None
    project_id: str | None = None
    app_slug: str | None = None


@dataclass(frozen=True, slots=True)
class Right:
    """A right that a request needed and had: a permission in a scope, for a thing by its noun and id. Where the
    permission is None, the entitlement of the scope's tenant to the scope's app."""

    permission: str | None
    scope: Scope
    noun: str = ""
    identifier: str = ""


@dataclass(frozen=True, slots=True)
class RoleGrant:
    role: str
    tenant_id: str | None = None
    project_id: str | None = None
    app_slug: str | None = None
    """Of a publisher: the app that is its own."""

    def covers(self, scope: Scope) -> bool:
        if self.role == Role.APP_PUBLISHER:
            return self.app_slug is not None and self.app_slug == scope.app_slug
        if self.project_id is not None:
            return self.project_id == scope.project_id
        if self.tenant_id is not None:
            # A service account may have a project's role in a whole tenant: in each project, not above them.
            inside = scope.project_id is not None or self.role not in PROJECT_ROLES
            return inside and self.tenant_id == scope.tenant_id
        return True


@dataclass(frozen=True, slots=True)
class Caller:
    """The authenticated principal of a request."""

    kind: PrincipalKind
    id: str
    name: str
    grants: tuple[RoleGrant, ...] = ()
    app_slug: str | None = None
    tenant_ids: frozenset[str] = field(default_factory=frozenset)
    """Tenants that it may see: of its tenant roles and of the projects that it has a role in."""
    used: dict[Right, None] = field(default_factory=dict, compare=False, repr=False)
    """The rights that were asked for and given, each once: an answer that is kept for its idempotency key is given
    again only to a caller who still has them."""

    @property
    def is_platform_admin(self) -> bool:
        return any(grant.role == Role.PLATFORM_ADMIN for grant in self.grants)

    @property
    def published_apps(self) -> list[str]:
        return [grant.app_slug for grant in self.grants if grant.role == Role.APP_PUBLISHER and grant.app_slug]

    @property
    def project_ids(self) -> list[str]:
        return [grant.project_id for grant in self.grants if grant.project_id is not None]

    @property
    def whole_tenant_ids(self) -> list[str]:
        """Tenants in all of whose projects it has a role."""
        return [grant.tenant_id for grant in self.grants if grant.tenant_id is not None]

    @property
    def only_app(self) -> str | None:
        """The one app whose instances it may see: a controller without any other role has no business with others."""
        if self.app_slug is None or any(grant.role != CONTROLLER for grant in self.grants):
            return None
        return self.app_slug

    def projects_with(self, permission: Permission) -> list[str]:
        return [g.project_id for g in self.grants if g.project_id is not None and g.role in POLICY[permission]]

    def tenants_with(self, permission: Permission) -> list[str]:
        return [g.tenant_id for g in self.grants if g.tenant_id is not None and g.role in POLICY[permission]]

    def roles_in(self, scope: Scope) -> set[str]:
        return {grant.role for grant in self.grants if grant.covers(scope)}

    def sees(self, scope: Scope) -> bool:
        if any(grant.covers(scope) and self._shows(grant, scope) for grant in self.grants):
            return True
        return scope.project_id is None and scope.tenant_id in self.tenant_ids

    def _shows(self, grant: RoleGrant, scope: Scope) -> bool:
        """A controller has no business with the instances of other apps: it does not know of them."""
        if grant.role == CONTROLLER:
            return scope.app_slug in {None, self.app_slug}
        return grant.role != Role.APP_PUBLISHER

    def may(self, permission: Permission, scope: Scope) -> bool:
        if permission == Permission.TENANT_READ:
            return self.sees(scope)
        roles = self.roles_in(scope)
        if CONTROLLER in roles and scope.app_slug is not None and scope.app_slug != self.app_slug:
            roles.discard(CONTROLLER)
        return bool(roles & POLICY[permission])

    def _works_as_controller(self, permission: Permission, scope: Scope) -> bool:
        """Whether it does the work of a controller, and has no other role that lets it."""
        roles = {grant.role for grant in self.grants if grant.covers(scope)} & POLICY[permission]
        return permission in _WORK and roles == {CONTROLLER}

    def require(
        self, permission: Permission, scope: Scope, noun: str, identifier: str, *, operator_id: str | None = None
    ) -> None:
        """Answer 404 where the caller may not even know of the scope, 403 where it may look but not touch.

        `operator_id` names the one controller account that may work on the thing."""
        if self.may(permission, scope):
            if operator_id not in {None, self.id} and self._works_as_controller(permission, scope):
                detail = f"{self.name} is not the operator of this {noun}: only {operator_id} works on it"
                raise Refusal(Code.NOT_OPERATOR, detail, denied=True)
            self.used[Right(permission, scope, noun, identifier)] = None
            return
        if not self.sees(scope) and (scope.tenant_id is not None or scope.project_id is not None):
            raise not_found(noun, identifier, denied=True)
        detail = f"{self.name} may not {permission.words} here"
        raise Refusal(Code.FORBIDDEN, detail, denied=True)
