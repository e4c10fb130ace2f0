"""Controllers as the users that they run as: none reads anything of another, of the API or of the agent."""

from __future__ import annotations

import os
import pwd
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuaas_stack import platform_services, users
from gpuaas_stack.packs import Pack
from gpuaas_stack.processes import ProcessId
from gpuaas_stack.progress import Progress
from gpuaas_stack.service import Service
from gpuaas_stack.settings import Settings
from gpuaas_stack.stack import Stack
from gpuaas_stack.supervision import Supervision

SECRET = "only-for-one"


def pack(slug: str) -> Pack:
    script = f"echo {SECRET}; exec sleep 600"
    argv = ["sh", "-c", script]
    return Pack(directory=Path("/nowhere"), slug=slug, manifest="manifest.yaml", bundle=["true"], controller=argv)


@pytest.mark.parametrize("slug", ["a", "roll-call", "a" * 20, "a" * 21, "a" * 40, "long-name-with-a-dash-at-the-end-"])
def test_a_controller_has_a_user_that_linux_takes(slug: str) -> None:
    name = users.controller_user(slug)
    assert len(name) <= 32
    assert name == users.controller_user(slug), "the same after every start"
    assert name not in {users.STORES, users.REGISTRY, users.API, users.SHARED_BY_CONTROLLERS}


def test_no_two_apps_share_a_user() -> None:
    short = users.controller_user("a" * 40).removeprefix(users.CONTROLLER_PREFIX)
    slugs = ["a" * 20, "a" * 21, "a" * 39, "a" * 40, "a" * 39 + "b", short]
    assert len({users.controller_user(slug) for slug in slugs}) == len(slugs)


def start(supervision: Supervision, *services: Service) -> list[ProcessId]:
    supervision.ensure_running()
    for service in services:
        supervision.ensure_service(service)
    states = [supervision.wait_ready(service.name, timeout=30) for service in services]
    return [state.process for state in states if state.process]


def eventually(condition: Callable[[], object], what: str, timeout: float = 15) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout} s for {what}"
        time.sleep(0.02)


def reads(user: str, path: Path) -> bool:
    """Whether a process of this user gets a byte of it: of an address space, one that is there."""
    script = (
        "import sys\n"
        "path = sys.argv[1]\n"
        "start = 0\n"
        "if path.endswith('/mem'):\n"
        "    start = int(open(path[:-3] + 'maps').readline().split('-')[0], 16)\n"
        "file = open(path, 'rb', buffering=0)\n"
        "file.seek(start)\n"
        "sys.exit(0 if file.read(1) else 1)\n"
    )
    words = users.run_as(user, ["/usr/bin/python3", "-c", script, str(path)])
    return subprocess.run(words, check=False, capture_output=True, cwd="/").returncode == 0


def lists(user: str, path: Path) -> bool:
    words = users.run_as(user, ["ls", str(path)])
    return subprocess.run(words, check=False, capture_output=True, cwd="/").returncode == 0


def test_a_controller_reads_nothing_of_another_nor_of_the_platform(
    new_slug: Callable[[], str], supervision: Supervision, state_dir: Path
) -> None:
    settings = Settings(state_dir=state_dir)
    one, two = pack(new_slug()), pack(new_slug())
    for each in (one, two):
        platform_services.write_service_account(settings, each.slug, "sa_1", SECRET)
    # The API and the agent as their descriptions say, with a program that needs nothing.
    sleeper = pack("any").controller_argv()
    api = platform_services.api_service(settings, "postgresql://secret", "http://vault", state_dir / "token")
    (state_dir / "platform" / "note").write_text(SECRET)
    agent = Service("agent", sleeper, 40, cwd=str(state_dir), env={"SECRET": SECRET})
    platform_services.write_join_token(settings, SECRET)
    services = [
        platform_services.controller_service(settings, one),
        platform_services.controller_service(settings, two),
        Service("api", sleeper, api.order, user=api.user, cwd=api.cwd, env=api.env),
        agent,
    ]
    mine, other, of_api, of_agent = start(supervision, *services)
    me = services[0].user

    def private(process: ProcessId) -> list[Path]:
        return [Path(f"/proc/{process.pid}/{name}") for name in ("environ", "mem")]

    own = [settings.service_account_file(one.slug), *private(mine)]
    assert [path for path in own if not reads(me, path)] == [], (
        "what it needs itself, and what shows that the look works"
    )
    foreign = [settings.service_account_file(two.slug), *private(other), *private(of_api), *private(of_agent)]
    foreign += [settings.join_token_file, state_dir / "platform" / "note", state_dir / "services" / "api.json"]
    foreign += [state_dir / "logs" / f"{service.name}.log" for service in services]
    assert [path for path in foreign if not os.access(path, os.R_OK)] == [], "they are there"
    assert [path for path in foreign if reads(me, path)] == []
    closed = [settings.app_dir(two.slug), state_dir / "platform", state_dir / "agent", state_dir / "logs"]
    assert [path for path in closed if lists(me, path)] == []
    assert [path for path in (settings.app_dir(one.slug), *private(mine)) if reads(users.API, path)] == []
    assert not lists(users.API, settings.app_dir(one.slug))


def test_files_of_the_user_that_all_shared_are_handed_over(new_slug: Callable[[], str], state_dir: Path) -> None:
    settings, slug = Settings(state_dir=state_dir), new_slug()
    users.ensure_user(users.SHARED_BY_CONTROLLERS)
    former = pwd.getpwnam(users.SHARED_BY_CONTROLLERS)
    own = settings.app_dir(slug)
    (own / "deep" / "er").mkdir(parents=True)
    outside = state_dir / "outside"
    outside.write_text("not the app's")
    os.chown(outside, former.pw_uid, former.pw_gid)
    (own / "deep" / "er" / "state").write_text("kept")
    (own / "link").symlink_to(outside)
    (own / "of-root").write_text("root's")
    for path in (own, own / "deep", own / "deep" / "er", own / "deep" / "er" / "state", own / "link"):
        os.chown(path, former.pw_uid, former.pw_gid, follow_symlinks=False)
    assert platform_services.belongs_to_shared_user(settings, slug)
    for _ in range(2):
        assert platform_services.ensure_app_dir(settings, slug) == own
    user = users.controller_user(slug)
    assert not platform_services.belongs_to_shared_user(settings, slug)
    handed = (own, own / "deep", own / "deep" / "er", own / "deep" / "er" / "state")
    assert {path.owner() for path in handed} == {user}
    assert (own / "link").lstat().st_uid == pwd.getpwnam(user).pw_uid
    assert outside.owner() == users.SHARED_BY_CONTROLLERS, "links are not followed"
    assert (own / "of-root").owner() == "root"
    assert reads(user, own / "deep" / "er" / "state")
    assert own.stat().st_mode & 0o777 == 0o700


def test_a_controller_of_an_earlier_version_ends_before_its_files_are_handed_over(
    new_slug: Callable[[], str], supervision: Supervision, state_dir: Path
) -> None:
    settings, each = Settings(state_dir=state_dir), pack(new_slug())
    users.ensure_user(users.SHARED_BY_CONTROLLERS)
    users.ensure_dir(settings.app_dir(each.slug), users.SHARED_BY_CONTROLLERS, 0o700)
    # It writes until its very end.
    script = "trap 'echo last words > state; exit' TERM; echo up > first; while :; do sleep 0.02; done"
    argv = ["sh", "-c", script]
    name, home = f"controller-{each.slug}", str(settings.app_dir(each.slug))
    start(supervision, Service(name, argv, 50, user=users.SHARED_BY_CONTROLLERS, cwd=home))
    eventually((settings.app_dir(each.slug) / "first").exists, "the trap")
    Stack(settings, Progress()).start_controller(each)
    state = settings.app_dir(each.slug) / "state"
    assert (state.read_text(), state.owner()) == ("last words\n", users.controller_user(each.slug))
    (service,) = supervision.states()
    assert service.process is not None
    assert Path(f"/proc/{service.process.pid}").owner() == users.controller_user(each.slug)


def test_what_an_app_is_published_with_is_out_of_the_controller_s_reach(
    new_slug: Callable[[], str], state_dir: Path
) -> None:
    settings, slug = Settings(state_dir=state_dir), new_slug()
    own = platform_services.ensure_app_dir(settings, slug)
    (own / platform_services.SIGNING_KEY).write_text("of an earlier version")
    packs = platform_services.ensure_pack_dir(settings, slug)
    assert (packs / platform_services.SIGNING_KEY).read_text() == "of an earlier version"
    user = users.controller_user(slug)
    assert not lists(user, packs)
    # One that the controller put there is not taken, and the key that is there stays.
    planted = own / platform_services.SIGNING_KEY
    planted.write_text("of the controller")
    os.chown(planted, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)
    platform_services.ensure_pack_dir(settings, slug)
    assert (packs / platform_services.SIGNING_KEY).read_text() == "of an earlier version"
    (packs / platform_services.SIGNING_KEY).unlink()
    platform_services.ensure_pack_dir(settings, slug)
    assert not (packs / platform_services.SIGNING_KEY).exists()
    assert not planted.exists()
