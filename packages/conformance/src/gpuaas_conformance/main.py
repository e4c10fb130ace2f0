"""gpuaas-conformance: does an app's controller keep the rules of the contract?"""

import argparse
import asyncio
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

from gpuaas_conformance.leaving import take_leave
from gpuaas_conformance.platform import (
    ADMIN_EMAIL,
    KitError,
    Target,
    find_machines,
    find_project,
    other_controllers,
    own_platform,
)
from gpuaas_conformance.proxy import FaultProxy
from gpuaas_conformance.rules import CHECKS, Findings, table
from gpuaas_conformance.scenarios import SCENARIOS, Kit
from gpuaas_conformance.subject import AppUnderTest, Subject, TookTooLongError, make_account, publish, read_app
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials
from gpuaas_sdk.errors import GpuaasError

KEPT, BROKEN, CANNOT_RUN = 0, 1, 2


async def check(
    target: Target, app: AppUnderTest, scenarios: Sequence[str], *, seed: int, work: Path, log: Path
) -> Findings:
    findings = Findings()
    async with (
        GpuaasClient(
            target.api_url, PasswordCredentials(target.email, target.password), ca_file=target.ca_file
        ) as admin,
        FaultProxy(target.api_url, ca_file=target.ca_file) as proxy,
        prepared(admin, proxy, target, app, work, log) as subject,
    ):
        kit = Kit(subject, findings, random.Random(seed))  # noqa: S311 - chance, not a secret
        await kit.begin()
        try:
            for name in scenarios:
                began = time.monotonic()
                await SCENARIOS[name](kit)
                # A whole run takes many minutes: this says where it is.
                _say(f"{name}: over after {time.monotonic() - began:.0f} s")
        except TookTooLongError as error:
            # The next run needs the machines that this one has not given back.
            findings.look(kit.at, False, str(error))
    return findings


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


@asynccontextmanager
async def prepared(
    admin: GpuaasClient, proxy: FaultProxy, target: Target, app: AppUnderTest, work: Path, log: Path
) -> AsyncIterator[Subject]:
    """The app on the platform, and the kit's own account for its controller; at the end, whatever it was, the account
    and the instances are gone, and the entitlement too where the kit has granted it. The published version stays."""
    project = await find_project(admin, target.project)
    machines = await find_machines(admin, project, target.machines)
    slug = app.manifest.slug
    await publish(admin, app, machines[0], work)
    entitled = await admin.entitlements.list(tenant_id=project.tenant_id, app_slug=slug).all()
    granted = None if entitled else await admin.entitlements.grant(project.tenant_id, slug)
    _say(await other_controllers(admin, project, slug))
    account = work / "service-account.json"
    account_id = await make_account(admin, project.id, slug, account)
    subject = Subject(admin, proxy, app, project.id, machines, account, log)
    try:
        yield subject
    finally:
        proxy.weather, proxy.streams_cut = None, False
        try:
            for words in await take_leave(subject):
                _say(words)
        finally:
            await subject.end(signal.SIGKILL)
            await admin.service_accounts.delete(account_id)
            if granted is not None:
                await admin.entitlements.revoke(granted.id)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpuaas-conformance", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="every check, and the rules it is for")
    run = commands.add_parser("run", help="deploy the app on a platform, with faults, and look")
    run.add_argument("--app", type=Path, default=Path(), help="the app's directory, with its pack.yaml")
    run.add_argument("--controller", help="the command of its controller; that of pack.yaml where left out")
    run.add_argument(
        "--artifact", action="append", default=[], metavar="SLOT=FILE", help="instead of pack.yaml's bundle"
    )
    run.add_argument("--scenario", action="append", choices=list(SCENARIOS), help="only this one; may be repeated")
    run.add_argument("--seed", type=int, default=time.time_ns() % 100_000, help="of what is left to chance")
    run.add_argument("--json", action="store_true", dest="as_json")
    run.add_argument("--log", type=Path, help="what the controllers say; forgotten where left out")
    run.add_argument("--keep", action="store_true", help="leave the kit's own platform running")
    run.add_argument("--api-url", help="use this platform instead of one of the kit's own")
    run.add_argument("--email", default=ADMIN_EMAIL)
    run.add_argument("--password-file", type=Path)
    run.add_argument("--project", default="demo", help="its name, tenant/name or id")
    run.add_argument("--machines", default="demo-1,demo-2", help="two empty machines of the project, by name or id")
    return parser


def _run(arguments: argparse.Namespace) -> int:
    scenarios = arguments.scenario or list(SCENARIOS)
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpuaas-conformance-")))
        app = read_app(arguments.app.resolve(), arguments.controller, arguments.artifact)
        if arguments.api_url is None:
            target = stack.enter_context(own_platform(keep=arguments.keep))
        elif arguments.password_file is None:
            raise KitError("--api-url needs --password-file")
        else:
            password = arguments.password_file.read_text().strip()
            machines = tuple(arguments.machines.split(","))
            target = Target(arguments.api_url, arguments.email, password, arguments.project, machines)
        log = (arguments.log or work / "controller.log").resolve()
        found = asyncio.run(check(target, app, scenarios, seed=arguments.seed, work=work, log=log))
    rows = found.rows(set(scenarios))
    broken = [row["check"] for row in rows if row["verdict"] == "BROKEN"]
    if arguments.as_json:
        result = {"app": app.manifest.slug, "seed": arguments.seed, "ok": not broken, "checks": rows}
        print(json.dumps(result, indent=1))
    else:
        verdict = f"broken: {', '.join(broken)}" if broken else "all rules that were seen are kept"
        print(f"{table(rows)}\n\nseed {arguments.seed}: {verdict}")
    return BROKEN if broken else KEPT


def main() -> None:
    arguments = _parser().parse_args()
    try:
        if arguments.command == "list":
            for each in CHECKS:
                print(f"{','.join(map(str, each.rules)):<6} {each.key:<20} {each.scenario:<11} {each.sentence}")
            sys.exit(KEPT)
        sys.exit(_run(arguments))
    except (KitError, GpuaasError, OSError) as error:
        print(f"gpuaas-conformance: {error}", file=sys.stderr)
        sys.exit(CANNOT_RUN)
