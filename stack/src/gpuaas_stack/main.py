"""gpuaas-stack: everything on one machine, up and down."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence

from pydantic import ValidationError
from rich.console import Console

from gpuaas_contract.instances import InstanceStatus
from gpuaas_sdk.errors import GpuaasError
from gpuaas_stack import demo
from gpuaas_stack.errors import StackError
from gpuaas_stack.packs import program
from gpuaas_stack.platform_services import ADMIN_EMAIL
from gpuaas_stack.progress import Progress
from gpuaas_stack.settings import Settings
from gpuaas_stack.stack import Stack
from gpuaas_stack.status import collect, show

POOL_VARIABLE = "GPUAAS_TEST_POOL"


def up(settings: Settings, *, bare: bool) -> int:
    with Progress() as progress:
        stack = Stack(settings, progress)
        stack.up()
        seeded = None if bare else asyncio.run(demo.seed(stack))
        progress.say(f"\n[bold]GPUaaS is up[/bold] after {progress.total():.1f} s: {settings.api_url}")
        if seeded is not None:
            progress.say(f"In use: {seeded.capacity}")
        for line in next_steps(settings, [] if seeded is None else seeded.deployed):
            progress.say(line)
    return 0


def next_steps(settings: Settings, deployed: Sequence[demo.Deployed]) -> list[str]:
    """Commands for a newcomer to type next, ready to copy."""
    gpuaas = program("gpuaas")
    trusted = "" if settings.trusted_file is None else f"--ca-file {settings.trusted_file} "
    lines = [
        "Log in as its administrator:",
        f"  {gpuaas} login --api-url {settings.api_url} {trusted}--email {ADMIN_EMAIL} --password-stdin "
        f"< {settings.admin_password_file}",
    ]
    for each in deployed:
        instance = each.instance
        if instance.status != InstanceStatus.RUNNING:
            lines.append(f"\n{instance.app_slug} as [bold]{instance.name}[/bold] is {instance.status}. What to do:")
            lines.append(f"  {gpuaas} instance explain {instance.name}")
            continue
        lines.append(
            f"\n{instance.app_slug} runs as [bold]{instance.name}[/bold] ({instance.versions.observed_runtime})."
        )
        if each.entrance is not None:
            lines += ["Log in:", f"  {gpuaas} ssh {each.entrance.name}"]
        lines += [f"  {line}" for line in each.shown.splitlines()]
        lines.append(f"How to use it: {gpuaas} instance show {instance.name}")
        lines += [f"{what}:\n  {gpuaas} {how}" for what, how in each.next_steps.items()]
        lines.append(
            f"Take it apart, and read the proof:\n  {gpuaas} instance decommission {instance.name} --yes --wait\n"
            f"  {gpuaas} instance receipt {instance.name}"
        )
    if not deployed:
        lines.append(f"Choose what to run on it: {gpuaas} app list")
    return [*lines, "\nStop everything with `make down`; data and machines are kept."]


def down(settings: Settings) -> int:
    with Progress() as progress:
        Stack(settings, progress).down()
        progress.say(f"Down in {progress.total():.1f} s. Machines and data are kept for the next up.")
    return 0


def status(settings: Settings, *, as_json: bool) -> int:
    found = collect(Stack(settings, Progress()))
    if as_json:
        print(json.dumps(found, indent=1))
    else:
        show(Console(highlight=False, soft_wrap=True), found)
    return 0 if found["up"] else 3


def reset(settings: Settings, *, yes: bool) -> int:
    progress = Progress()
    stack = Stack(settings, progress)
    progress.say(f"This destroys all data of the environment {settings.environment}:")
    for loss in stack.losses():
        progress.say(f"  {loss}")
    if not yes:
        if not sys.stdin.isatty():
            raise StackError("cannot ask for consent without a terminal: say YES=1 (or --yes) to go on")
        if input(f"Type the name of the environment ({settings.environment}) to go on: ") != settings.environment:
            progress.say("Nothing was changed.")
            return 1
    with progress:
        stack.reset()
    return 0


def collect_garbage(settings: Settings) -> int:
    with Progress() as progress:
        progress.say(Stack(settings, progress).collect_garbage())
    return 0


def with_machines(settings: Settings, command: Sequence[str]) -> int:
    """Provide LXD, the image and a pool while a command runs, for tests that make machines of their own."""
    if not command:
        raise StackError("no command was given: write it after --")
    with Stack(settings, Progress()).machines_only() as pool:
        done = subprocess.run(list(command), check=False, env={**os.environ, POOL_VARIABLE: pool})
    return done.returncode


def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(prog="gpuaas-stack", description=__doc__)
    commands = root.add_subparsers(dest="command", required=True)
    started = commands.add_parser("up", help="start everything, with a demo in it; returns when it is usable")
    started.add_argument("--bare", action="store_true", help="services only: no tenant, no machines, no apps")
    commands.add_parser("down", help="stop everything; machines and data are kept")
    bare = commands.add_parser("with-machines", help=f"run a command with LXD, the image and {POOL_VARIABLE}")
    bare.add_argument("words", nargs=argparse.REMAINDER, help="-- COMMAND …")
    commands.add_parser("collect-garbage", help="free what deleted artifacts took; the registry is read-only meanwhile")
    commands.add_parser("keep-lxd", help="start LXD again when it dies; the supervisor runs this")
    commands.add_parser("keep-certificate", help="renew the API's certificate in time; the supervisor runs this")
    shown = commands.add_parser("status", help="what runs; exit status 3 when it is not all up")
    shown.add_argument("--json", action="store_true", dest="as_json")
    wiped = commands.add_parser("reset", help="stop everything and delete all data")
    wiped.add_argument("--yes", action="store_true", help="do not ask")
    return root


def run(arguments: argparse.Namespace) -> int:
    settings = Settings()
    match arguments.command:
        case "up":
            return up(settings, bare=arguments.bare)
        case "down":
            return down(settings)
        case "with-machines":
            words: list[str] = arguments.words
            return with_machines(settings, words[1:] if words[:1] == ["--"] else words)
        case "collect-garbage":
            return collect_garbage(settings)
        case "keep-lxd":
            return Stack(settings, Progress()).keep_lxd()
        case "keep-certificate":
            return Stack(settings, Progress()).keep_certificate()
        case "status":
            return status(settings, as_json=arguments.as_json)
        case _:
            return reset(settings, yes=arguments.yes)


def main() -> None:
    try:
        sys.exit(run(parser().parse_args()))
    except (StackError, ValidationError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except GpuaasError as error:
        # Only the demo calls the API; what runs goes on.
        print(f"error: the platform is up, but the demo could not be set up: {error}", file=sys.stderr)
        print("look around with `gpuaas instance list`, or start over with `make reset`", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("interrupted; services that were started keep running (see `make status`)", file=sys.stderr)
        sys.exit(130)
