"""The command line against a real platform: golden output, exit codes, logins, verdicts.

What differs from run to run (ids, times, hashes, addresses) is replaced by its kind. After an intended change:
`GPUAAS_WRITE_GOLDEN=1 pytest tests/http/test_cli.py`, then look at the difference and commit it."""

import asyncio
import json
import os
import re
import subprocess
from pathlib import Path

import httpx
import pytest

from gpuaas_sdk.client import GpuaasClient
from gpuaas_stack.settings import Settings
from tests.e2e.command_line import CommandLine
from tests.support.database import connect
from tests.support.services import admin_credentials
from tests.support.waiting import wait_until
from tests.support.world import World

GOLDEN = Path(__file__).parent / "golden"
_KINDS = [
    (re.compile(r"\b([a-z]{2,4})_[0-9a-hjkmnp-tv-z]{26}\b"), r"<\1>"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)"), "<time>"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"), "<time>"),
    (re.compile(r"http://127\.0\.0\.1:\d+"), "<platform>"),
    (re.compile(r'("public_key(_pem)?": )"[^"]+"'), r'\1"<key>"'),
    # How many batches the sealer made of it is a matter of the moment.
    (re.compile(r"batch \d+ \(\d+ to \d+\)"), "batch <number>"),
    (re.compile(r"\d+ sealed batches"), "<number> sealed batches"),
    (re.compile(r'("batch(es)?": )\d+'), r"\1<number>"),
    (re.compile(r'("fingerprint": )"[^"]+"'), r'\1"<hash>"'),
    (re.compile(r"SHA256:[A-Za-z0-9+/]{43}"), "<fingerprint>"),
    (re.compile(r"ssh-ed25519 [A-Za-z0-9+/=]{68}"), "<public key>"),
]


@pytest.fixture
def cli(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    home = tmp_path_factory.mktemp("home")
    line = CommandLine(home, environment={"TZ": "UTC"})
    email, password = admin_credentials(settings)
    words = ["login", "--api-url", settings.api_url, "--email", email, "--password-stdin"]
    line.run(*words, stdin=password + "\n")
    file = home / ".config" / "gpuaas" / "config.yaml"
    assert file.stat().st_mode & 0o777 == 0o600
    assert password not in file.read_text()
    return line


def normal(text: str) -> str:
    for pattern, kind in _KINDS:
        text = pattern.sub(kind, text)
    return text


def check_golden(name: str, transcript: list[str]) -> None:
    file = GOLDEN / f"{name}.txt"
    found = "\n".join(transcript)
    if os.environ.get("GPUAAS_WRITE_GOLDEN"):
        file.write_text(found)
    assert found == file.read_text(), f"see {file}"


def say(cli: CommandLine, transcript: list[str], *words: str, stdin: str = "") -> str:
    """Run it, and note the command, what it said and its exit code."""
    done = cli.call(*words, stdin=stdin, timeout=60)
    transcript.append(normal(f"$ gpuaas {' '.join(words)}"))
    transcript += [line.rstrip() for line in normal(done.stdout).splitlines()]
    transcript += [f"! {line.rstrip()}" for line in normal(done.stderr).splitlines()]
    transcript += [f"= {done.returncode}", ""]
    return done.stdout


@pytest.mark.own_platform("it lists all tenants")
def test_identity_by_hand(cli: CommandLine, tmp_path: Path) -> None:
    said: list[str] = []
    say(cli, said, "whoami")
    say(cli, said, "tenant", "create", "acme", "--title", "Acme")
    say(cli, said, "tenant", "create", "--from-file", "-", "-o", "json", stdin='{"name": "beta"}')
    say(cli, said, "tenant", "list")
    say(cli, said, "tenant", "update", "beta", "--title", "Beta")
    say(cli, said, "tenant", "create", "acme")
    say(cli, said, "tenant", "create", "NOT A NAME", "-o", "json")
    say(cli, said, "project", "create", "research", "--tenant", "acme")
    say(cli, said, "project", "list", "-o", "json")
    say(cli, said, "project", "update", "research", "--title", "Research")
    say(cli, said, "user", "create", "ada@example.com", "--password-stdin", stdin="a long enough password\n")
    say(cli, said, "membership", "create", "ada@example.com", "project_admin", "--project", "research")
    say(cli, said, "membership", "create", "ada@example.com", "king")
    memberships = json.loads(say(cli, said, "membership", "list", "--user", "ada@example.com", "-o", "json"))
    say(cli, said, "membership", "list", "--user", "ada@example.com")
    say(cli, said, "membership", "delete", memberships[0]["id"])
    say(cli, said, "membership", "delete", memberships[0]["id"], "--yes")
    say(cli, said, "user", "disable", "ada@example.com", "--yes")
    say(cli, said, "user", "enable", "ada@example.com")
    say(cli, said, "user", "show", "ada@example.com", "-o", "json")
    say(cli, said, "user", "delete", "ada@example.com")
    say(cli, said, "user", "delete", "ada@example.com", "--yes")
    say(cli, said, "tenant", "delete", "acme", "--yes")
    say(cli, said, "tenant", "delete", "beta", "--yes")
    say(cli, said, "tenant", "show", "beta")
    check_golden("identity", said)


def test_service_accounts_by_hand(cli: CommandLine, tmp_path: Path) -> None:
    said: list[str] = []
    cli.run("tenant", "create", "robots")
    cli.run("project", "create", "factory", "--tenant", "robots")
    project = ["--project", "factory"]
    file = tmp_path / "bot.json"
    words = ["service-account", "create", "bot", "--role", "project_admin", "--file", str(file), *project]
    assert cli.call(*words).returncode == 0
    assert file.stat().st_mode & 0o777 == 0o600
    assert cli.call(*words).returncode == 5, "a file that may hold the only copy of a key is not written over"
    say(cli, said, "service-account", "list", *project)
    say(cli, said, "service-account", "show", "bot", "-o", "json", *project)
    keys = json.loads(say(cli, said, "service-account", "keys", "bot", "-o", "json", *project))
    secret = json.loads(cli.run("service-account", "add-secret", "bot", "-o", "json", *project))
    assert len(secret["secret"]) > 20
    say(cli, said, "service-account", "revoke-key", "bot", secret["id"], "--yes", *project)
    say(cli, said, "service-account", "revoke-key", "bot", "sak_nothing", "--yes", *project)
    # The account's own login, in a context of its own, for as long as it may.
    cli.run("login", "--context", "bot", "--service-account", str(file))
    assert json.loads(cli.run("whoami", "--context", "bot", "-o", "json"))["kind"] == "service_account"
    cli.run("context", "use", "default")
    say(cli, said, "service-account", "disable", "bot", "--yes", *project)
    denied = cli.call("whoami", "--context", "bot")
    assert denied.returncode == 4, denied.stderr
    say(cli, said, "service-account", "enable", "bot", *project)
    say(cli, said, "service-account", "delete", "bot", "--yes", *project)
    say(cli, said, "service-account", "list", *project)
    assert keys[0]["kind"] == "public_key"
    check_golden("service_accounts", said)


def test_credentials_by_hand(cli: CommandLine, tmp_path: Path) -> None:
    said: list[str] = []
    cli.run("tenant", "create", "outside")
    cli.run("project", "create", "lab", "--tenant", "outside")
    project = ["--project", "lab"]
    file = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(file)], check=True)
    key = file.read_text()
    say(cli, said, "credential", "list", *project)
    say(cli, said, "credential", "create", "bare", *project)
    say(cli, said, "credential", "create", "made", "--generate", *project)
    say(cli, said, "credential", "create", "own", "--private-key", "-", "-o", "json", *project, stdin=key)
    say(cli, said, "credential", "create", "bad", "--private-key", "-", *project, stdin="nonsense")
    say(cli, said, "credential", "create", "made", "--generate", *project)
    say(cli, said, "credential", "rotate", "made", "--generate", *project)
    say(cli, said, "credential", "rotate", "made", "--generate", *project)
    say(cli, said, "credential", "show", "made", *project)
    wanted = [cli.json("credential", "show", "made", *project)["versions"][0]["version"]]
    assert wanted == [1]
    assert cli.call("credential", "end-version", "made", "1", "--yes", *project).returncode == 0
    assert cli.call("credential", "revoke", "made", "--yes", *project).returncode == 0
    say(cli, said, "credential", "delete", "made", *project)
    assert cli.call("credential", "delete", "made", "--yes", *project).returncode == 0
    say(cli, said, "credential", "list", *project)
    say(cli, said, "credential", "show", "made", *project)
    # Never, wherever it came from.
    assert not [line for line in said if "PRIVATE KEY" in line or key.splitlines()[1] in line]
    check_golden("credentials", said)


@pytest.mark.own_platform("it lists all nodes")
def test_machines_that_are_no_slices(cli: CommandLine, tmp_path: Path) -> None:
    said: list[str] = []
    cli.run("tenant", "create", "elsewhere")
    cli.run("project", "create", "far", "--tenant", "elsewhere")
    project = ["--project", "far"]
    cli.run("credential", "create", "key", "--generate", *project)
    host_key = tmp_path / "host.pub"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(tmp_path / "host")], check=True)
    create = ["allocation", "create", "--name", "lab"]
    pinned = f"@{host_key}"
    outside = ["--external-address", "lab.example", "--external-credential", "key"]
    assert cli.call(*create, "--host", *outside, *project).returncode == 2
    say(cli, said, *create, *outside, *project)
    said.append(normal(cli.run(*create, *outside, "--external-host-key", pinned, "--cpus", "8", *project)))
    say(cli, said, "allocation", "list", *project)
    say(cli, said, "allocation", "restart", "lab", *project)
    say(cli, said, "ssh", "lab", *project)
    assert cli.json("allocation", "release", "lab", "--yes", "--wait", *project)["status"] == "released"
    said.append(normal(cli.run("allocation", "create", "--name", "whole", "--host", *project)))
    say(cli, said, "node", "list")
    cli.run("allocation", "release", "whole", "--yes", *project)
    check_golden("shapes", said)


def test_secrets_are_known_of_and_not_shown(cli: CommandLine) -> None:
    said: list[str] = []
    say(cli, said, "secret", "show", "key")
    say(cli, said, "secret", "show", "sec_00000000000000000000000000")
    check_golden("secrets", said)


def _sealed_and_signed(cli: CommandLine, tenant: str, entries: int) -> bool:
    done = cli.call("audit", "verify", "--tenant", tenant, "-o", "json")
    verdict = json.loads(done.stdout)
    return done.returncode == 0 and verdict["entries"] == entries and verdict["newest_batch_is_signed"]


def test_the_audit_trail_and_its_verdict(cli: CommandLine, settings: Settings, tmp_path: Path) -> None:
    said: list[str] = []
    tenant = json.loads(cli.run("tenant", "create", "audited", "-o", "json"))
    cli.run("project", "create", "books", "--tenant", "audited")
    wait_until(lambda: _sealed_and_signed(cli, "audited", 2), "both entries are sealed and the head is signed")
    say(cli, said, "audit", "list", "--tenant", "audited")
    say(cli, said, "audit", "list", "--tenant", "audited", "--action", "project", "-o", "json")
    say(cli, said, "audit", "verify", "--tenant", "audited")
    say(cli, said, "audit", "verify", "--tenant", "audited", "-o", "json")
    check_export(cli, tmp_path / "audited.jsonl")
    with connect(settings) as connection:
        query = "UPDATE audit_entries SET principal_id = 'somebody else' WHERE chain = %s AND action = 'tenant.create'"
        assert connection.execute(query, [tenant["id"]]).rowcount == 1
    say(cli, said, "audit", "verify", "--tenant", "audited")
    say(cli, said, "audit", "verify", "--tenant", "audited", "-o", "json")
    check_golden("audit", said)


def check_export(cli: CommandLine, file: Path) -> None:
    words = ["audit", "export", "--tenant", "audited", "--action", "project."]
    cli.run(*words, "--file", str(file))
    assert file.stat().st_mode & 0o077 == 0
    again = cli.call(*words, "--file", str(file))
    assert (again.returncode, "does not exist yet" in again.stderr) == (2, True)
    verdict = json.loads(cli.run("audit", "verify", "--file", str(file), "-o", "json"))
    assert (verdict["whole"], verdict["entries"], verdict["omitted"]) == (True, 1, 1)
    assert "is intact" in cli.run("audit", "verify", "--file", str(file), "--public-key", verdict["public_key"])
    assert cli.run(*words).splitlines()[0].startswith('{"header"')
    file.write_text(file.read_text().replace("books", "cooks").replace("127.0.0.1", "127.0.0.9"))
    broken = cli.call("audit", "verify", "--file", str(file))
    assert (broken.returncode, "BROKEN" in broken.stderr) == (1, True)
    assert cli.call("audit", "verify", "--file", str(file.parent / "none")).returncode == 2
    assert cli.call("audit", "verify", "--public-key", "AAAA").returncode == 2


def test_changes_are_watched_line_by_line(cli: CommandLine) -> None:
    said: list[str] = []
    tenant = json.loads(cli.run("tenant", "create", "watched", "-o", "json"))
    cli.run("project", "create", "seen", "--tenant", "watched")
    words = ["changes", "watch", "--all", "--tenant", "watched", "--since", "start"]
    say(cli, said, *words, "--count", "2")
    lines = say(cli, said, *words, "--noun", "project", "--count", "1", "-o", "json").splitlines()
    assert [json.loads(line)["tenant_id"] for line in lines] == [tenant["id"]]
    say(cli, said, "changes", "watch", "--noun", "nonsense")
    say(cli, said, "changes", "watch", "--since", "garbled")
    check_golden("changes", said)
    live = cli.start("changes", "watch", "--all", "--tenant", "watched", "--count", "1", "-o", "json")
    for number in range(100):
        cli.run("tenant", "update", "watched", "--title", f"Watched {number}")
        if live.poll() is not None:
            break
    assert live.stdout is not None
    assert json.loads(live.stdout.read())["event"] == "updated"


def test_what_an_operation_takes(cli: CommandLine) -> None:
    listed = json.loads(cli.run("schema", "-o", "json"))
    assert {"create_allocation", "read_changes"} <= {operation["operation"] for operation in listed}
    described = json.loads(cli.run("schema", "create-allocation", "-o", "json"))
    assert described["request"] == "POST /v1/allocations"
    assert described["body"]["properties"]["shape"]["$ref"] == "#/$defs/Shape"
    assert "Shape" in described["body"]["$defs"]
    missing = cli.call("schema", "create_alocation")
    assert missing.returncode == 3
    assert "create_allocation" in missing.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_for(cli: CommandLine, shell: str) -> None:
    script = cli.run("completion", shell)
    assert "service-account" in script
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_a_deploy_is_tried_without_being_done(cli: CommandLine, tmp_path: Path) -> None:
    said: list[str] = []
    cli.run("tenant", "create", "trial")
    cli.run("project", "create", "trial", "--tenant", "trial")
    manifest = {
        "schema": "gpuaas.app/v1",
        "slug": "echo",
        "title": "Echo",
        "version": "1.0.0",
        "runtime": {"name": "echo", "version": "7"},
        "components": [{"key": "head", "title": "Head", "primary": True}],
        "inputs": {"type": "object", "additionalProperties": False, "properties": {"size": {"type": "integer"}}},
        "operations": [{"kind": "deploy", "title": "Deploy"}, {"kind": "decommission", "title": "End"}],
    }
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    cli.run("app", "publish", str(tmp_path / "manifest.json"))
    body = {"name": "first", "app_slug": "echo", "inputs": {"size": 3}}
    good = {**body, "placement_intent": [{"component_key": "head", "allocation_id": "alc_1"}]}
    bad = {**body, "inputs": {"size": "x"}, "placement_intent": [{"component_key": "tail", "allocation_id": "alc_1"}]}
    words = ["instance", "deploy", "--project", "trial", "--from-file", "-", "--dry-run"]
    say(cli, said, *words, stdin=json.dumps(good))
    say(cli, said, *words, "-o", "json", stdin=json.dumps(bad))
    say(cli, said, "instance", "list", "--project", "trial")
    say(cli, said, "instance", "deploy", "echo", "--project", "trial")
    check_golden("deploy_dry_run", said)


async def test_a_person_logs_in_through_a_browser(settings: Settings, admin: GpuaasClient, tmp_path: Path) -> None:
    """Approved by code, renewed by itself, also by two processes at once; over after logging out."""
    own = CommandLine(tmp_path)
    login = own.start("login", "--device", "--api-url", settings.api_url)
    assert login.stderr is not None
    code = address = ""
    while not code:
        line = await asyncio.to_thread(login.stderr.readline)
        assert line, "the command line ended without a code"
        address = line.removeprefix("Open ").strip() if line.startswith("Open ") else address
        found = re.search(r"approve the code ([A-Z-]+)", line)
        code = found[1] if found else ""
    async with httpx.AsyncClient() as browser:
        page = await browser.get(address)
    assert (page.status_code, address) == (200, f"{settings.api_url}/device?user_code={code}")
    assert code in page.text
    await admin.sessions.approve_device(code)
    await asyncio.to_thread(login.wait, 60)
    assert login.returncode == 0
    file = tmp_path / ".config" / "gpuaas" / "config.yaml"
    assert file.stat().st_mode & 0o777 == 0o600
    kept = json.loads(file.read_text())
    first = kept["contexts"]["default"]["refresh_token"]
    kept["contexts"]["default"]["token_expires_at"] = 1.0
    file.write_text(json.dumps(kept))
    both = [own.start("whoami", "-o", "json") for _ in range(2)]
    for process in both:
        out, err = await asyncio.to_thread(process.communicate)
        assert process.returncode == 0, err
        assert json.loads(out)["kind"] == "user"
    renewed = json.loads(file.read_text())["contexts"]["default"]
    assert renewed["refresh_token"] not in (None, first)
    token = renewed["token"]
    await asyncio.to_thread(own.run, "logout")
    assert "refresh_token" not in file.read_text()
    late = CommandLine(tmp_path, environment={"GPUAAS_TOKEN": token, "GPUAAS_API_URL": settings.api_url})
    done = await asyncio.to_thread(late.call, "whoami")
    assert done.returncode == 4, "the login is over on the platform, too"


async def test_several_machines_are_made_at_once_with_the_steps_of_each(cli: CommandLine, admin: GpuaasClient) -> None:
    async with World.create(admin, "several") as world:
        words = ["allocation", "create", "--project", world.project.id, "--name", "w", "--count", "3", "--wait"]
        done = await asyncio.to_thread(cli.call, *words, "-o", "json", timeout=60)
        assert done.returncode == 0, done.stderr
        made = json.loads(done.stdout)
        assert [(machine["name"], machine["status"]) for machine in made] == [(f"w-{n}", "active") for n in (1, 2, 3)]
        for name in ("w-1", "w-2", "w-3"):
            steps = [line.split()[2] for line in done.stderr.splitlines() if f" {name} " in line]
            assert steps == ["requested", "provisioning", "working", "active"]
        again = await asyncio.to_thread(cli.call, *words, timeout=60)
        assert again.returncode == 5
        assert "w-3" in again.stderr
        words = ["allocation", "create", "--tenant", world.tenant.name, "--name", "shared", "--wait", "-o", "json"]
        own = json.loads(await asyncio.to_thread(cli.run, *words))
        assert (own["tenant_id"], own["project_id"], own["status"]) == (world.tenant.id, None, "active")
        listed = await asyncio.to_thread(cli.run, "allocation", "list", "--tenant", world.tenant.name, "-o", "json")
        assert [machine["id"] for machine in json.loads(listed)] == [own["id"]]
        await asyncio.to_thread(cli.run, "allocation", "usage", own["id"])


def test_nothing_is_asked_without_a_terminal(cli: CommandLine) -> None:
    cli.run("tenant", "create", "careful")
    for words in (
        ["tenant", "delete", "careful"],
        ["user", "create", "eve@example.com"],
        ["login", "--api-url", "http://127.0.0.1:1", "--context", "nowhere"],
    ):
        done = cli.call(*words, timeout=20)
        assert done.returncode == 2, done.stderr
        assert done.stdout == ""
    assert "careful" in cli.run("tenant", "list")
