"""People on real machines: who gets in, as whom, and how quickly they are out."""

import secrets
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpuaas_stack.platform_services import ADMIN_EMAIL
from gpuaas_stack.stack import Stack
from tests.e2e.administrator import Platform
from tests.e2e.command_line import GPUAAS, CommandLine
from tests.machines.conftest import pid_of
from tests.machines.people import Person, SshFiles, log_in, make_person
from tests.machines.slices import SMALL, make, release
from tests.support.ports import free_port
from tests.support.waiting import wait_until

DENIED = "Permission denied (publickey)"
PEOPLE = "/etc/ssh/gpuaas_people"
"""On a machine: a file for each person that it ever had."""


@pytest.fixture(scope="module")
def machines(cli: CommandLine, node: str) -> Iterator[dict[str, str]]:
    """Two machines of the project: the id by the name."""
    yield {name: made["id"] for name, made in make(cli, "one", "two").items()}
    release(cli, "one", "two")


@pytest.fixture
def people(stack: Stack, cli: CommandLine, machines: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., Person]]:
    made: list[Person] = []

    def make(name: str, role: str = "project_member") -> Person:
        made.append(make_person(stack, cli, tmp_path / "homes", name, role))
        return made[-1]

    yield make
    for person in made:
        for grant in person.api.get("/v1/users/me/grants").json().get("items", []):
            cli.run("grant", "revoke", grant["id"], "--yes", "--wait")
        person.close()


@pytest.fixture(scope="module")
def admin(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    home = tmp_path_factory.mktemp("admin")
    person = log_in(stack, home, ADMIN_EMAIL, stack.settings.admin_password_file.read_text().strip())
    yield person
    person.close()


@pytest.fixture
def files(tmp_path: Path) -> SshFiles:
    (tmp_path / "ssh").mkdir()
    return SshFiles(tmp_path / "ssh")


@dataclass
class Ending:
    """Two rights that end by themselves, a minute after they were given: of a certificate, and of a grant."""

    admin: Person
    machine: str
    files: SshFiles
    ada: Person
    of_ada: dict[str, Any]
    short: str
    """A certificate of ada's whose own time is short."""
    of_bob: dict[str, Any]
    with_grant: str
    """One of bob's whose time is that of his grant."""

    def enter(self, made: dict[str, Any], certificate: str) -> subprocess.CompletedProcess[str]:
        """The administrator's streams lead to the machine also after the person's own have ended."""
        by_admin = self.admin.access(self.machine, self.files.key())
        words = self.files.words(self.machine, made["login"], by_admin, certificate=certificate)
        return self.admin.run(*words, "true", env={"GPUAAS_TOKEN": self.admin.token})


@pytest.fixture(scope="module", autouse=True)
def ending(
    stack: Stack, cli: CommandLine, machines: dict[str, str], admin: Person, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ending]:
    """From the module's start on: their minute passes while the other tests run."""
    homes = tmp_path_factory.mktemp("ending")
    ada, bob = make_person(stack, cli, homes, "ada"), make_person(stack, cli, homes, "bob")
    files, machine = SshFiles(homes), machines["two"]
    of_ada, of_bob = grant(cli, "two", ada), grant(cli, "two", bob, "--expires", "1m")
    short = ada.access(machine, files.key(), lifetime_seconds=60)["certificate"]
    with_grant = bob.access(machine, files.key(), lifetime_seconds=900)["certificate"]
    ending = Ending(admin, machine, files, ada, of_ada, short, of_bob, with_grant)
    assert ending.enter(of_ada, short).returncode == ending.enter(of_bob, with_grant).returncode == 0
    yield ending
    for person in (ada, bob):
        person.close()


def grant(cli: CommandLine, machine: str, person: Person, *words: str) -> dict[str, Any]:
    made = cli.json("grant", "create", machine, person.email, *words, "--wait")
    assert made["status"] == "active"
    return dict(made)


def test_a_person_is_their_own_user_with_sudo_or_without(
    cli: CommandLine, machines: dict[str, str], people: Callable[..., Person]
) -> None:
    ada, bob = people("ada"), people("bob")
    refused = ada.cli.call("ssh", "one", "--", "true")
    assert refused.returncode == 4
    assert f"gpuaas grant create one {ada.email}" in refused.stderr
    of_ada, of_bob = grant(cli, "one", ada), grant(cli, "one", bob, "--sudo", "--expires", "1h")
    login = of_ada["login"]
    assert ada.cli.ssh("one", "id -un; id -u; pwd").split() == [login, str(of_ada["uid"]), f"/home/{login}"]
    assert bob.cli.ssh("one", "sudo -n id -un").strip() == "root"
    no_sudo = ada.cli.call("ssh", "one", "--", "sudo", "-n", "true")
    assert no_sudo.returncode == 1
    assert "password is required" in no_sudo.stderr
    assert ada.cli.call("ssh", "one", "--", "exit 42").returncode == 42
    assert ada.cli.ssh("one", f"stat -c %u /home/{of_bob['login']}").strip() == str(of_bob["uid"])
    # Not on the other machine, where only the administrator of the project is let in, as the machine's own user.
    assert ada.cli.call("ssh", "two", "--", "true").returncode == 4
    assert cli.ssh("two", "id -un").strip() == "gpuaas"
    assert cli.ssh("two", f"id {of_ada['login']} 2>&1 || true").startswith("id:")


def test_listening_on_a_machine_is_a_right_of_its_own(
    cli: CommandLine, machines: dict[str, str], people: Callable[..., Person], files: SshFiles
) -> None:
    """`ssh -R` would lead out of the machine's network; `ssh -L` leads into it, and is everybody's."""
    ada, bob, one = people("ada"), people("bob"), machines["one"]
    of_ada, of_bob = grant(cli, "one", ada), grant(cli, "one", bob, "--remote-forwarding")
    assert (of_ada["remote_forwarding"], of_bob["remote_forwarding"]) == (False, True)

    def ssh(person: Person, login: str, *options: str) -> subprocess.CompletedProcess[str]:
        access = person.access(one, files.key())
        program, *words = files.words(one, login, access, certificate=access["certificate"])
        more = ["-o", "ExitOnForwardFailure=yes", *options]
        return person.run(program, *more, *words, "true", env={"GPUAAS_TOKEN": person.token})

    for remote in ("0:127.0.0.1:22", f"/tmp/{of_ada['login']}.sock:127.0.0.1:22"):
        refused = ssh(ada, of_ada["login"], "-R", remote)
        assert (refused.returncode, "forwarding failed" in refused.stderr) == (255, True), refused
    allowed = ssh(bob, of_bob["login"], "-R", "0:127.0.0.1:22")
    assert allowed.returncode == 0, allowed
    inward = ssh(ada, of_ada["login"], "-W", "127.0.0.1:22")
    assert inward.stdout.startswith("SSH-2.0-"), inward
    # Given anew without it, the right is gone from the machine, too.
    cli.run("grant", "revoke", of_bob["id"], "--yes", "--wait")
    again = ssh(bob, grant(cli, "one", bob)["login"], "-R", "0:127.0.0.1:22")
    assert (again.returncode, "forwarding failed" in again.stderr) == (255, True), again


def test_certificates_open_what_they_are_for_and_nothing_else(
    cli: CommandLine, machines: dict[str, str], people: Callable[..., Person], admin: Person, files: SshFiles
) -> None:
    ada, bob = people("ada"), people("bob")
    of_ada, of_bob = grant(cli, "one", ada), grant(cli, "one", bob)
    one, two = machines["one"], machines["two"]
    public = files.key()
    access = ada.access(one, public)
    token = {"GPUAAS_TOKEN": ada.token}
    right = files.words(one, of_ada["login"], access, certificate=access["certificate"])
    assert ada.run(*right, "id -un", env=token).stdout.strip() == of_ada["login"]

    def refused(words: list[str], person: Person, why: str = DENIED) -> None:
        done = person.run(*words, "true", env={"GPUAAS_TOKEN": person.token})
        assert done.returncode == 255, done.stdout
        assert why in done.stderr, done.stderr

    # Another user of the machine, root, the machine's own user.
    for login in (of_bob["login"], "root", "gpuaas"):
        refused(files.words(one, login, access, certificate=access["certificate"]), ada)
    # Another machine: the administrator's stream leads there, the certificate opens nothing there.
    by_admin = admin.access(two, public)
    for login in (of_ada["login"], "gpuaas", "root"):
        refused(files.words(two, login, by_admin, certificate=access["certificate"]), admin)
    # A stream is for the machine that it was given for, and for whom.
    refused(files.words(two, "gpuaas", access, certificate=access["certificate"]), ada, "not_found")
    refused(files.words(one, of_ada["login"], access, certificate=access["certificate"]), bob, "not_found")
    # Without a certificate; and a host that another authority vouches for.
    refused(files.words(one, of_ada["login"], access, certificate=None), ada)
    other = files.key("other")
    wrong = files.words(one, of_ada["login"], access, certificate=access["certificate"], authorities=[other])
    refused(wrong, ada, "Host key verification failed")
    # The host's certificate is for this machine, not for the other.
    elsewhere = files.words(one, of_ada["login"], access, certificate=access["certificate"], principal=two)
    refused(elsewhere, ada, "Host key verification failed")


def test_the_authority_of_another_project_opens_nothing(
    cli: CommandLine, machines: dict[str, str], admin: Person, files: SshFiles
) -> None:
    cli.json("project", "create", "elsewhere", "--tenant", "acme")
    there = cli.json("allocation", "create", "--name", "there", "--project", "elsewhere", *SMALL, "--wait")
    try:
        public = files.key()
        own, foreign = admin.access(machines["one"], public), admin.access(there["id"], public)
        assert own["host_authority"] != foreign["host_authority"]
        words = files.words(machines["one"], "gpuaas", own, certificate=foreign["certificate"])
        done = admin.run(*words, "true", env={"GPUAAS_TOKEN": admin.token})
        assert (done.returncode, DENIED in done.stderr) == (255, True), done.stderr
        believed = [foreign["host_authority"]]
        unbelieved = files.words(machines["one"], "gpuaas", own, certificate=own["certificate"], authorities=believed)
        done = admin.run(*unbelieved, "true", env={"GPUAAS_TOKEN": admin.token})
        assert "Host key verification failed" in done.stderr
    finally:
        release(cli, there["id"])
        cli.run("project", "delete", "elsewhere", "--yes")


def test_revoked_at_once(
    cli: CommandLine, machines: dict[str, str], people: Callable[..., Person], admin: Person, files: SshFiles
) -> None:
    revoke(cli, machines, people, admin, files)


@pytest.mark.quiet
def test_revoked_within_a_second(
    cli: CommandLine, machines: dict[str, str], people: Callable[..., Person], admin: Person, files: SshFiles
) -> None:
    """On a machine that is not busy with other tests."""
    assert max(revoke(cli, machines, people, admin, files)) < 1


def revoke(
    cli: CommandLine, machines: dict[str, str], people: Callable[..., Person], admin: Person, files: SshFiles
) -> list[float]:
    """An open session and a forwarded port end, the certificate is worth nothing, nothing of the person runs on.
    Returns how many seconds each of these took."""
    ada = people("ada")
    made = grant(cli, "one", ada, "--sudo")
    public = files.key()
    certificate = ada.access(machines["one"], public)["certificate"]
    gpuaas = str(GPUAAS)
    session = ada.start(gpuaas, "ssh", "one", "--", "echo ready; sleep 600", stdin=subprocess.DEVNULL)
    assert session.stdout is not None
    assert session.stdout.readline().strip() == "ready"
    port = free_port()
    ada.start(gpuaas, "ssh", "one", "-N", "-L", f"{port}:localhost:22", stdin=subprocess.DEVNULL)
    wait_until(lambda: banner(port).startswith(b"SSH-2.0"), "the port is forwarded")
    forwarded = socket.create_connection(("127.0.0.1", port))
    assert forwarded.recv(64).startswith(b"SSH-2.0")
    ada.cli.ssh("one", "setsid -f sleep 601 </dev/null >/dev/null 2>&1")
    assert "sleep 601" in cli.ssh("one", "ps -e -o args=")

    started = time.monotonic()
    admin.api.post(f"/v1/grants/{made['id']}/revoke").raise_for_status()
    answered = time.monotonic()
    assert session.wait(60) != 0
    session_ended = time.monotonic() - answered
    forwarded.settimeout(60)
    assert forwarded.recv(64) == b""
    port_ended = time.monotonic() - answered

    def is_off() -> bool:
        return bool(admin.api.get(f"/v1/grants/{made['id']}").json()["status"] == "revoked")

    wait_until(is_off, "it is off the machine", every=0.02)
    off_machine = time.monotonic() - answered
    print(
        f"revoke answered in {answered - started:.3f} s; after that the session ended in {session_ended:.3f} s, "
        f"the forwarded port in {port_ended:.3f} s, the machine was done in {off_machine:.3f} s"
    )
    running = cli.ssh("one", "ps -e -o user=,args=")
    assert "sleep 600" not in running
    assert "sleep 601" not in running
    assert made["login"] not in {line.split()[0] for line in running.splitlines()}
    by_admin = admin.access(machines["one"], public)
    words = files.words(machines["one"], made["login"], by_admin, certificate=certificate)
    done = admin.run(*words, "true", env={"GPUAAS_TOKEN": admin.token})
    assert DENIED in done.stderr
    left = "ls /etc/ssh/gpuaas_principals /etc/ssh/gpuaas_keys /etc/sudoers.d"
    assert made["login"] not in cli.ssh("one", f"sudo {left}").replace(f"gpuaas-{made['login']}", made["login"])
    assert ada.cli.call("ssh", "one", "--", "true").returncode == 4
    return [session_ended, port_ended, off_machine]


def banner(port: int) -> bytes:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
            return connection.recv(64)
    except OSError:
        return b""


def test_own_keys_and_plain_ssh(
    cli: CommandLine, machines: dict[str, str], people: Callable[..., Person], files: SshFiles, tmp_path: Path
) -> None:
    ada = people("ada")
    made = grant(cli, "one", ada)
    ada.cli.run("ssh-config")
    (tmp_path / "sent").write_text("brought along")
    home = ["-F", str(ada.home / ".ssh" / "gpuaas" / "config")]
    assert ada.run("ssh", *home, "one.gpuaas", "id -un").stdout.strip() == made["login"]
    assert ada.run("scp", "-q", *home, str(tmp_path / "sent"), "one.gpuaas:sent").returncode == 0
    assert ada.cli.ssh("one", "cat sent") == "brought along"
    (tmp_path / "tree" / "below").mkdir(parents=True)
    (tmp_path / "tree" / "below" / "leaf").write_text("synchronised")
    over_ssh = ["rsync", "-a", "-e", " ".join(["ssh", *home])]
    assert ada.run(*over_ssh, f"{tmp_path}/tree/", "one.gpuaas:tree").returncode == 0
    assert ada.cli.ssh("one", "cat tree/below/leaf") == "synchronised"
    assert (ada.home / ".ssh" / "config").read_text().startswith("Include gpuaas/config")

    # With a key of one's own, and no certificate: it opens the machine through the platform, and from nowhere else.
    files.key("own")
    own = ["-o", "CertificateFile=none", "-i", str(files.directory / "own"), "-o", "IdentitiesOnly=yes"]
    plain = ["ssh", *home, *own, "-o", f"IdentityFile={files.directory / 'own'}", "one.gpuaas", "id -un"]
    no_certificate = ada.home / ".ssh" / "gpuaas" / "key"
    no_certificate.rename(no_certificate.with_suffix(".away"))
    assert DENIED in ada.run(*plain).stderr
    ada.cli.run("ssh-key", "add", "laptop", str(files.directory / "own.pub"))
    wait_until(lambda: ada.run(*plain).stdout.strip() == made["login"], "the key is on the machine")
    line = cli.ssh("one", f"cat /etc/ssh/gpuaas_keys/{made['login']}")
    assert 'restrict,pty,port-forwarding,from="10.' in line
    ada.cli.run("ssh-key", "remove", "laptop")
    wait_until(lambda: DENIED in ada.run(*plain).stderr, "the key is off the machine")
    ada.cli.run("ssh-key", "add", "laptop", str(files.directory / "own.pub"))
    wait_until(lambda: ada.run(*plain).stdout.strip() == made["login"], "the key is back")
    cli.run("grant", "revoke", made["id"], "--yes", "--wait")
    assert cli.ssh("one", "ls /etc/ssh/gpuaas_keys").split() == []


def test_a_name_from_before_there_was_a_namespace_changes_and_the_files_stay(
    cli: CommandLine, machines: dict[str, str], people: Callable[..., Person]
) -> None:
    """The machine knows the person by another name, as an agent of the version before left it; also where this agent
    was interrupted while it changed that."""
    for name, interrupted in (("ada", False), ("bob", True)):
        person, old = people(name), f"old{secrets.token_hex(4)}"
        before = grant(cli, "one", person)
        login = before["login"]
        person.cli.ssh("one", "echo mine >kept")
        cli.run("grant", "revoke", before["id"], "--yes", "--wait")
        rename = f"usermod --login {old} --home /home/{old} --move-home {login} && groupmod --new-name {old} {login}"
        rename += f" && mv {PEOPLE}/{login} {PEOPLE}/{old} && sed -i s/^{login}:/{old}:/ /etc/subuid /etc/subgid"
        if interrupted:
            rename += f" && usermod --login {login} --home /home/{login} {old}"
        cli.ssh("one", f"sudo -n sh -c '{rename}'")
        after = grant(cli, "one", person)
        assert (after["login"], after["uid"]) == (login, before["uid"])
        seen = person.cli.ssh("one", "id -un; id -gn; pwd; cat kept; stat -c %U:%G kept").split()
        assert seen == [login, login, f"/home/{login}", "mine", f"{login}:{login}"]
        left = f"getent passwd {old}; getent group {old}; ls -d /home/{old} {PEOPLE}/{old} 2>/dev/null"
        assert cli.ssh("one", f"{{ {left}; grep -h {old} /etc/subuid; }} || true") == "", "a package may have the name"


def test_directly_where_there_is_a_route(
    cli: CommandLine, machines: dict[str, str], people: Callable[..., Person]
) -> None:
    """From the host itself there is one. The same certificate, the same proof of the host."""
    ada = people("ada")
    made = grant(cli, "one", ada)
    assert ada.cli.run("ssh", "one", "--direct", "--", "id -un").strip() == made["login"]
    gpuaas = str(GPUAAS)
    session = ada.start(gpuaas, "ssh", "one", "--direct", "--", "echo ready; sleep 600", stdin=subprocess.DEVNULL)
    assert session.stdout is not None
    assert session.stdout.readline().strip() == "ready"
    cli.run("grant", "revoke", made["id"], "--yes", "--wait")
    assert session.wait(60) != 0, "what did not come through the platform is ended by the machine"


def test_an_agent_that_was_away_removes_people_before_anything_else(
    stack: Stack, cli: CommandLine, platform: Platform, machines: dict[str, str], people: Callable[..., Person]
) -> None:
    ada = people("ada")
    made = grant(cli, "one", ada)
    stack.supervision.remove_service("agent")
    try:
        platform.wait_for_node("host-one", "offline")
        cli.run("allocation", "restart", "one")
        ended = cli.json("grant", "revoke", made["id"], "--yes")
        assert ended["status"] == "revoking"
    finally:
        stack.start_agent()
    platform.wait_until(lambda: grant_status(platform, made["id"]) == "revoked", "the machine was told")
    platform.wait_until(lambda: platform.machine("one").activity is None, "the machine has restarted")
    log = (stack.settings.state_dir / "logs" / "agent.log").read_text()
    assert pid_of(stack, "agent")
    after = log[log.rindex("linked to the platform") :]
    assert 0 < after.index("set_users") < after.index("restart_slice")
    assert made["login"] not in cli.ssh("one", "ls /etc/ssh/gpuaas_principals").split()


def grant_status(platform: Platform, grant_id: str) -> str:
    return platform.ask(lambda client: client.grants.get(grant_id)).status


def test_certificates_and_grants_end_by_themselves(cli: CommandLine, platform: Platform, ending: Ending) -> None:
    """The last of the module: by now their minute has passed, or nearly so."""
    for made, certificate in ((ending.of_ada, ending.short), (ending.of_bob, ending.with_grant)):

        def is_refused(made: dict[str, Any] = made, certificate: str = certificate) -> bool:
            return DENIED in ending.enter(made, certificate).stderr

        wait_until(is_refused, "the certificate has ended", 90, 1)
    assert cli.json("grant", "show", ending.of_ada["id"])["status"] == "active"
    renewed = ending.ada.access(ending.machine, ending.files.key())["certificate"]
    assert ending.enter(ending.of_ada, renewed).returncode == 0
    of_bob = ending.of_bob["id"]
    platform.wait_until(lambda: grant_status(platform, of_bob) == "revoked", "the grant was taken back")
    assert cli.json("grant", "show", of_bob)["reason"] == "it expired"
