"""The files for a host that is handed over, and the hosts that are left alone."""

from pathlib import Path

import pytest

from gpuaas_agent.artifacts import copy_into
from gpuaas_agent.errors import PermanentError
from gpuaas_agent.host_config import check_spec, check_sshd, drop_in, host_files, parse_sshd_settings
from gpuaas_agent.host_record import HostRecord, HostRecordFile
from gpuaas_agent.sshd import parse_certificate
from gpuaas_agent.unit import unit_text
from gpuaas_contract.agent_link import HostCertificate, PrepareHost
from gpuaas_contract.ids import ALLOCATION, new_id

PLAIN = """port 2222
port 22
permitrootlogin without-password
trustedusercakeys none
authorizedprincipalsfile none
hostkey /etc/ssh/ssh_host_rsa_key
hostkey /etc/ssh/ssh_host_ed25519_key
"""
ALLOCATION_ID = new_id(ALLOCATION)


def spec(**principals: list[str]) -> PrepareHost:
    return PrepareHost(allocation_id=ALLOCATION_ID, principals=principals)


def test_the_keys_that_sshd_had_stay_first() -> None:
    found = parse_sshd_settings(PLAIN)
    check_sshd(found)
    lines = drop_in(ALLOCATION_ID, found).splitlines()
    keys = [line.split()[1] for line in lines if line.startswith("HostKey ")]
    assert keys == ["/etc/ssh/ssh_host_rsa_key", "/etc/ssh/ssh_host_ed25519_key", "/etc/ssh/gpuaas/host_key"]
    assert ALLOCATION_ID in lines[0], "the file says whose it is"
    assert found.port == 2222
    assert not any(line.startswith("PermitRootLogin") for line in lines), "what works is not changed"


def test_root_is_let_in_with_a_certificate_where_it_was_not() -> None:
    found = parse_sshd_settings(PLAIN.replace("without-password", "no"))
    assert "PermitRootLogin prohibit-password\n" in drop_in(ALLOCATION_ID, found)


@pytest.mark.parametrize(
    "line",
    [
        "trustedusercakeys /etc/ssh/other_ca.pub",
        "authorizedprincipalsfile /etc/ssh/principals",
        "allowusers admin",
        "allowgroups wheel",
    ],
)
def test_a_host_with_rules_of_its_own_is_left_alone(line: str) -> None:
    name = line.split()[0]
    text = "\n".join(old for old in PLAIN.splitlines() if not old.startswith(name)) + f"\n{line}\n"
    with pytest.raises(PermanentError, match=line):
        check_sshd(parse_sshd_settings(text))


def test_nothing_else_gets_into_a_path_or_a_file() -> None:
    check_spec(spec(root=[f"root@{ALLOCATION_ID}"]))
    for bad in (
        spec(**{"../../root": ["x"]}),
        spec(root=["a\nb"]),
        PrepareHost(allocation_id="alc_x\nHostKey /x", principals={}),
    ):
        with pytest.raises(PermanentError):
            check_spec(bad)


def test_only_root_reads_the_private_key() -> None:
    files = host_files(spec(gpuaas=["p"]), "private", HostCertificate(certificate="c", user_authority="a"))
    assert {file.path.name: file.mode for file in files if file.content == "private"} == {"host_key": 0o600}
    assert [file.content for file in files if file.path.parts[-2:] == ("principals", "gpuaas")] == ["p\n"]


def test_the_certificate_that_sshd_shows() -> None:
    shown = "# 127.0.0.1:22 SSH-2.0-OpenSSH_9.2p1\nssh-ed25519-cert-v01@openssh.com AAAA\n"
    assert parse_certificate(shown) == "ssh-ed25519-cert-v01@openssh.com AAAA"
    assert parse_certificate(f"127.0.0.1 {shown.splitlines()[1]}\n") == "ssh-ed25519-cert-v01@openssh.com AAAA"
    assert parse_certificate("127.0.0.1 ssh-ed25519 AAAA\n") == ""


def test_the_record_survives(tmp_path: Path) -> None:
    file = HostRecordFile(tmp_path)
    assert file.load() is None
    record = HostRecord(ALLOCATION_ID, "tsk_1", ready=True, made=["/opt/gpuaas"], restart_task="tsk_2")
    file.save(record)
    assert HostRecordFile(tmp_path).load() == record
    file.remove()
    assert file.load() is None


def test_a_copy_is_not_the_cache(tmp_path: Path) -> None:
    cached, machine = tmp_path / "cached", tmp_path / "machine"
    machine.mkdir()
    cached.write_text("content")
    for _ in range(2):
        copy_into(cached, machine)
    copied = machine / "cached"
    assert copied.read_text() == "content"
    assert copied.stat().st_mode & 0o777 == 0o444
    assert copied.stat().st_ino != cached.stat().st_ino


def test_the_unit_runs_this_very_agent() -> None:
    text = unit_text(Path("/etc/gpuaas/agent.env"), "/opt/a$b/100%/python -m gpuaas_agent.main")
    assert "ExecStart=/opt/a$$b/100%%/python -m gpuaas_agent.main run\n" in text
    assert "EnvironmentFile=/etc/gpuaas/agent.env\n" in text
    assert "@" not in text
