"""Options for machines that are not slices: whole hosts and external machines."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

from gpuaas_cli import resolve
from gpuaas_cli.errors import USAGE, CliError
from gpuaas_cli.session import Session

KIND = Group("Kind of machine (default: a slice of a host)")


@Parameter(name="*", group=KIND)
@dataclass(frozen=True, kw_only=True)
class KindOptions:
    host: Annotated[bool, Parameter(name="--host", negative="", help="A whole host with at least these sizes.")] = False
    external_address: Annotated[
        str | None, Parameter(name="--external-address", help="An external machine: its address or host name.")
    ] = None
    external_port: Annotated[int | None, Parameter(name="--external-port", help="Its SSH port (22).")] = None
    external_login: Annotated[str | None, Parameter(name="--external-login", help="Login name (root).")] = None
    external_host_key: Annotated[
        str | None,
        Parameter(
            name="--external-host-key",
            help="Its public host key, or @FILE (on the machine: /etc/ssh/ssh_host_ed25519_key.pub).",
        ),
    ] = None
    external_credential: Annotated[
        str | None, Parameter(name="--external-credential", help="Its access credential, by name or id.")
    ] = None

    def add_to(self, shape: dict[str, Any]) -> None:
        """Add the options to a shape; they win over a file."""
        values = {
            "address": self.external_address,
            "port": self.external_port,
            "login": self.external_login,
            "host_key": _read(self.external_host_key),
            "credential_id": self.external_credential,
        }
        external = {name: value for name, value in values.items() if value is not None}
        if self.host and external:
            raise CliError("--host and --external-… exclude each other", USAGE)
        if self.host:
            shape["kind"] = "host"
        if external:
            shape["kind"] = "external"
            shape["external"] = {**(shape.get("external") or {}), **external}

    async def find_credential(self, session: Session, shape: dict[str, Any]) -> None:
        if self.external_credential is not None:
            found = await resolve.credential(session, self.external_credential)
            shape["external"]["credential_id"] = found.id


def _read(value: str | None) -> str | None:
    if value is None or not value.startswith("@"):
        return value
    return Path(value[1:]).read_text().strip()


NO_KIND = KindOptions()
