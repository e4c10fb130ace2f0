"""Machines that are not slices: a whole host, or one that is elsewhere already."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

from gpuaas_cli import resolve
from gpuaas_cli.errors import USAGE, CliError
from gpuaas_cli.session import Session

KIND = Group("Kind of machine (a slice of a host unless said otherwise)")


@Parameter(name="*", group=KIND)
@dataclass(frozen=True, kw_only=True)
class KindOptions:
    host: Annotated[
        bool, Parameter(name="--host", negative="", help="A whole host; the sizes are the least that it must have.")
    ] = False
    external_address: Annotated[
        str | None, Parameter(name="--external-address", help="A machine that is there already: address or host name.")
    ] = None
    external_port: Annotated[int | None, Parameter(name="--external-port", help="Its SSH port (22).")] = None
    external_login: Annotated[str | None, Parameter(name="--external-login", help="Who to log in as (root).")] = None
    external_host_key: Annotated[
        str | None,
        Parameter(
            name="--external-host-key",
            help="Its public host key, or @FILE with it (/etc/ssh/ssh_host_ed25519_key.pub on the machine).",
        ),
    ] = None
    external_credential: Annotated[
        str | None, Parameter(name="--external-credential", help="The access credential that opens it, by name or id.")
    ] = None

    def add_to(self, shape: dict[str, Any]) -> None:
        """Flags win over what a file said."""
        values = {
            "address": self.external_address,
            "port": self.external_port,
            "login": self.external_login,
            "host_key": _read(self.external_host_key),
            "credential_id": self.external_credential,
        }
        external = {name: value for name, value in values.items() if value is not None}
        if self.host and external:
            raise CliError("a machine is a whole host or an external one, not both", USAGE)
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
