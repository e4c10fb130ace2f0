"""Access to machines: a short-lived SSH certificate, and a byte stream through the machine's node agent."""

from pydantic import AwareDatetime, Field

from gpuaas_contract.base import Request, Resource

PERSON_LOGIN = "gpuaas"
"""The machine's own user: uid 10000, may use sudo. Those who administer the machine log in as it without a grant."""
OPERATOR_LOGIN = "root"
"""The user that the lease holder of an operation logs in as."""
OBSERVER_LOGIN = "gpuaas-observer"
"""The user that the holder of a reconcile lease or of a preflight logs in as, and whoever asks under the lease of an
operation to look alone: no sudo, no home, no forwarding."""
OBSERVER_ID = 9_999
"""Its uid and gid, below the platform's own range."""
CERTIFICATE_SECONDS = 300
MOST_CERTIFICATE_SECONDS = 900
LEASE_CERTIFICATE_SECONDS = 120
"""Life of the certificate of a lease. The machine refuses it as soon as the lease ends; where a node is cut off and
cannot be told, this is the bound."""
HOST_CERTIFICATE_SECONDS = 7 * 86_400
"""Life of the certificate by which a machine proves itself. It gets the next at half of that."""


class AccessRequest(Request):
    """The caller keeps the private key; only an ed25519 public key in OpenSSH form is sent."""

    public_key: str = Field(max_length=1_000, pattern=r"^ssh-ed25519 [A-Za-z0-9+/=]+( [^\x00-\x1f]*)?$")


class PersonAccessRequest(AccessRequest):
    lifetime_seconds: int = Field(default=CERTIFICATE_SECONDS, ge=60, le=MOST_CERTIFICATE_SECONDS)
    administrator: bool = False
    """As the machine's own user, by one's role, also where one has a grant."""


class LeaseAccessRequest(AccessRequest):
    fencing_token: int


class OperationAccessRequest(LeaseAccessRequest):
    observer: bool = False
    """As the observer, who changes nothing, on the machines of all members of the instance; instead of as root on those
    of the operation."""


class DirectAccess(Resource):
    """How an external machine is reached: not through an agent, and without a certificate of the platform."""

    port: int
    login: str
    host_key: str
    """The only host key to believe, in OpenSSH form."""
    credential_id: str
    """The access credential whose private key opens it."""


class MachineAddress(Resource):
    allocation_id: str
    hostname: str
    address: str
    host_principal: str
    """The name in the machine's host certificate; verify against it."""
    direct: DirectAccess | None = None
    """None: through the grant's stream. Otherwise: straight to the address, in this way."""
    credential_id: str | None = None
    """Through the stream, too, but with the key of this access credential, which the deploy chose: the certificate does
    not open this machine."""
    closed_at_end: bool = False
    """Whether the machine itself refuses this access and cuts its sessions when the lease or the grant behind it ends.
    False where a stored key opens the machine, which the platform cannot take back, and for access by a role: there a
    certificate is good until it expires."""


class MachineLeftOut(Resource):
    """A machine of the operation or instance that this access does not reach."""

    allocation_id: str
    reason: str


class AccessGrant(Resource):
    """Opens `WS /v1/access-grants/{id}/allocations/{allocation_id}/stream` until it expires or is ended."""

    id: str
    login: str
    certificate: str
    host_authority: str
    """Public key of the authority that signs host certificates: the only thing to trust. Two, one on each line, while
    the authority is rotated."""
    machines: list[MachineAddress]
    left_out: list[MachineLeftOut] = []
    """Under a lease: the machines that it is about and that this grant is not for."""
    expires_at: AwareDatetime
