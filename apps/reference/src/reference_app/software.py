"""The work on a machine: `read_…` and `observe_…` change nothing, `ensure_…` may be repeated.

`belongings` has all that the app ever brings to a machine. Each name is put on the machine's record before the thing is
made, and only what is on the record is removed: somebody else may have something of the same name."""

import json
import shlex
from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from gpuaas_contract.base import JsonObject
from gpuaas_sdk import (
    Belongings,
    CommandError,
    Machine,
    MachineRecord,
    Observation,
    ObservedMachine,
    RetryLater,
    SecretValue,
)
from gpuaas_sdk.observations import observe

USER = "rollcall"
DAEMONS_ONLY = "awk -F: '$3 < 1000'"
"""Of entries of passwd or group, those of daemons: people have the numbers from 1000 on."""
PROGRAM_DIR = "/opt/rollcall"
CONFIG_DIR = "/etc/rollcall"
STATE_DIR = "/var/lib/rollcall"
RECORD_DIR = "/var/lib/gpuaas/rollcall"
PROGRAM = f"{PROGRAM_DIR}/rollcall"
NOBODY_LISTENS = 69
READ_PERL = "if perl -MHTTP::Tiny -MJSON::PP -MIO::Socket::INET -e1 2>/dev/null; then echo perl=yes; fi"


class Role(StrEnum):
    CONTROLLER = "controller"
    WORKER = "worker"

    @property
    def unit(self) -> str:
        return f"rollcall-{self}.service"

    @property
    def unit_path(self) -> str:
        return f"/etc/systemd/system/{self.unit}"


_UNIT = """\
[Unit]
Description=Roll call {role}
After=network-online.target

[Service]
User={user}
ExecStart={program} {command}
Restart=on-failure
RestartSec=1
NoNewPrivileges=yes
ProtectSystem=strict
ReadWritePaths=-{state}

[Install]
WantedBy=multi-user.target
"""


def unit_text(role: Role) -> str:
    command = "serve" if role is Role.CONTROLLER else "beat"
    return _UNIT.format(role=role, user=USER, program=PROGRAM, command=command, state=STATE_DIR)


_SHARED = Belongings(
    users=(USER,),
    trees=(PROGRAM_DIR, f"{PROGRAM_DIR}.new", f"{PROGRAM_DIR}.old", STATE_DIR),
    files=(f"{CONFIG_DIR}/token",),
    directories=(CONFIG_DIR,),
)
"""Parts that both roles need, so that they go with the last one."""
_ROLE = {
    Role.CONTROLLER: Belongings(
        units=(Role.CONTROLLER.unit,),
        files=(
            f"{CONFIG_DIR}/{Role.CONTROLLER}.json",
            f"{RECORD_DIR}/{Role.CONTROLLER}.runs",
            f"{STATE_DIR}/roll.json",
            f"{STATE_DIR}/roll.json.new",
        ),
    ),
    Role.WORKER: Belongings(
        units=(Role.WORKER.unit,),
        files=(f"{CONFIG_DIR}/{Role.WORKER}.json", f"{RECORD_DIR}/{Role.WORKER}.runs"),
    ),
}
RECORD = MachineRecord(RECORD_DIR, _SHARED | _ROLE[Role.CONTROLLER] | _ROLE[Role.WORKER])


def belongings(roles: Iterable[Role], staying: Iterable[Role] = ()) -> Belongings:
    """List what these roles have on a machine, without what a role that stays still needs."""
    found = Belongings() if set(staying) else _SHARED
    for role in roles:
        found |= _ROLE[role]
    return found


async def ensure_recorded(machine: Machine, role: Role) -> JsonObject:
    """Before anything is brought: a machine that has these names already is somebody else's, and is left alone."""
    return await RECORD.ensure_brought(machine, belongings([role]))


async def ensure_installed(machine: Machine, digest: str) -> JsonObject:
    path = await machine.deliver(digest)
    script = f"""
if ! getent passwd {USER} >/dev/null; then
  useradd --system --user-group --no-create-home --home-dir {STATE_DIR} --shell /usr/sbin/nologin {USER}
fi
if [[ $(cat {PROGRAM_DIR}/DIGEST 2>/dev/null) != {shlex.quote(digest)} ]]; then
  rm -rf {PROGRAM_DIR}.new {PROGRAM_DIR}.old
  mkdir {PROGRAM_DIR}.new
  tar -x -f {shlex.quote(path)} -C {PROGRAM_DIR}.new --no-same-owner
  echo {shlex.quote(digest)} >{PROGRAM_DIR}.new/DIGEST
  chmod 0755 {PROGRAM_DIR}.new {PROGRAM_DIR}.new/rollcall
  chmod 0644 {PROGRAM_DIR}.new/VERSION {PROGRAM_DIR}.new/DIGEST
  if [[ -e {PROGRAM_DIR} ]]; then mv {PROGRAM_DIR} {PROGRAM_DIR}.old; fi
  mv {PROGRAM_DIR}.new {PROGRAM_DIR}
  rm -rf {PROGRAM_DIR}.old
fi
install -d -m 0755 {CONFIG_DIR}
install -d -m 0750 -o {USER} -g {USER} {STATE_DIR}
cat {PROGRAM_DIR}/VERSION
"""
    done = await machine.run_step("install", script)
    return {"version": done.stdout.strip()}


async def ensure_configured(machine: Machine, role: Role, config: JsonObject, token: SecretValue) -> None:
    """The token goes over standard input into a file that only the daemon's user can read."""
    await machine.write_file(f"{CONFIG_DIR}/token", token.reveal(), mode=0o400, owner=USER, group=USER)
    await machine.write_file(f"{CONFIG_DIR}/{role}.json", json.dumps(config, sort_keys=True) + "\n")
    await machine.write_file(role.unit_path, unit_text(role))


async def ensure_running(machine: Machine, role: Role) -> None:
    """Started anew only where what it runs with has changed since its start."""
    script = f"""
wanted=$(cat {PROGRAM_DIR}/DIGEST {CONFIG_DIR}/token {CONFIG_DIR}/{role}.json {role.unit_path} | sha256sum)
systemctl daemon-reload
systemctl enable --quiet {role.unit}
if [[ $(cat {RECORD_DIR}/{role}.runs 2>/dev/null) != "$wanted" ]] || ! systemctl is-active --quiet {role.unit}; then
  systemctl restart {role.unit}
  echo "$wanted" >{RECORD_DIR}/{role}.runs
fi
"""
    await machine.run_step(f"run-{role}", script)


async def ensure_stopped(machine: Machine, role: Role) -> None:
    script = f"if [[ -e {role.unit_path} ]]; then systemctl disable --quiet --now {role.unit}; fi"
    await machine.run_step(f"stop-{role}", script)


async def observe_running(machine: ObservedMachine, role: Role) -> Observation:
    return await observe(machine.read(f"systemctl is-active {role.unit}"), no_status=3)


async def read_roll(controller: Machine) -> dict[str, Any]:
    """Ask the controller itself. Nobody listening yet is a reason to come back, not a failure."""
    result = await controller.read(f"{PROGRAM} ask GET /health")
    if result.exit_status == NOBODY_LISTENS:
        raise RetryLater(1.0, f"the controller on {controller.hostname} does not listen yet")
    if not result.ok:
        raise CommandError(f"read the roll on {controller.hostname}", result)
    roll: dict[str, Any] = json.loads(result.stdout)
    return roll


async def read_worker(controller: Machine, name: str) -> dict[str, Any] | None:
    roll = await read_roll(controller)
    return next((worker for worker in roll["workers"] if worker["name"] == name), None)


async def ensure_told(controller: Machine, verb: str, name: str) -> None:
    """drain, resume or forget. The token is read from its file over there."""
    body = shlex.quote(json.dumps({"name": name}))
    await controller.run_step(f"{verb}-{name}", f"{PROGRAM} ask POST /{verb} {body}")


async def ensure_removed(machine: Machine, leaving: Iterable[Role], staying: Iterable[Role]) -> JsonObject:
    return await RECORD.ensure_removed(machine, belongings(leaving, staying))
