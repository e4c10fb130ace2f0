"""The arguments for OpenSSH."""

from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

from gpuaas_cli.commands.ssh import ssh_arguments
from gpuaas_cli.machine_access import make_key
from gpuaas_contract.access import AccessGrant, MachineAddress


def test_only_a_certified_host_is_believed(tmp_path: Path) -> None:
    public_key = make_key(tmp_path)
    assert public_key.startswith("ssh-ed25519 ")
    machine = MachineAddress(allocation_id="alc_1", hostname="one", address="10.0.0.1", host_principal="alc_1")
    grant = AccessGrant(
        id="acg_1",
        login="gpuaas",
        certificate="ssh-ed25519-cert-v01@openssh.com AAAA",
        host_authority="ssh-ed25519 BBBB",
        machines=[machine],
        expires_at=datetime.now(UTC),
    )
    arguments = ssh_arguments(tmp_path, grant, "alc_1", ["-N"], direct=False)
    assert arguments[:3] == ["ssh", "-F", "/dev/null"]
    assert arguments[-3:] == ["-N", "--", "alc_1"]
    settings = dict(value.split("=", 1) for flag, value in pairwise(arguments) if flag == "-o")
    assert settings["StrictHostKeyChecking"] == "yes"
    assert settings["HostKeyAlias"] == "alc_1"
    assert settings["GlobalKnownHostsFile"] == "/dev/null"
    assert (settings["User"], settings["HostName"]) == ("gpuaas", "one")
    assert "acg_1 alc_1" in settings["ProxyCommand"]
    assert "ProxyCommand" not in " ".join(ssh_arguments(tmp_path, grant, "alc_1", [], direct=True))
    assert (tmp_path / "key-known_hosts").read_text() == "@cert-authority alc_1 ssh-ed25519 BBBB\n"
    assert (tmp_path / "key").stat().st_mode & 0o077 == 0
