"""munged: one key for the whole cluster."""

import re
from dataclasses import dataclass

from gpuaas_sdk.machines.base import Machine, ObservedMachine
from slurm_app.slurm.facts import say_seconds
from slurm_app.slurm.script import quoted, step

KEY = "/etc/munge/munge.key"
STAGED_KEY = "/etc/munge/.munge.key.staged"

# /var/log/munge may be left from an earlier cluster whose munge user had another uid.
_START = f"""
if [ -e {STAGED_KEY} ]; then
    chown munge:munge {STAGED_KEY}
    if cmp -s {STAGED_KEY} {KEY}; then rm -f {STAGED_KEY}; else mv -f {STAGED_KEY} {KEY}; fi
fi
[ -s {KEY} ] || mungekey --create --keyfile={KEY}
chown munge:munge {KEY}
chmod 0600 {KEY}
mkdir -p /var/log/munge
chown -R munge:munge /var/log/munge
"""
_VERIFY = """
wait_for 10 'munged to answer' sh -c 'munge --no-input | unmunge'
munge --no-input | unmunge | sed -n 's/^STATUS: */munge=/p'
"""


def start_script() -> str:
    return step(
        _START,
        f"ensure_unit_current munge.service {KEY}",
        _VERIFY,
    )


async def ensure_munge_running(machine: Machine, key: bytes | None = None) -> dict[str, str]:
    """Start munged with this key; without one, with the key that the machine has or makes itself."""
    if key is not None:
        # Not through the script: a key never stands in a script or an argument list.
        await machine.write_file(STAGED_KEY, key, mode=0o600)
    result = await machine.run_step("start-munge", start_script())
    return result.values


async def read_key_digest(machine: Machine) -> str:
    """Read the SHA-256 of the key that the machine has; empty where it has none."""
    said = (await machine.read(f"[ ! -s {KEY} ] || sha256sum <{KEY}")).stdout.split()
    return said[0] if said else ""


_CREDENTIAL = re.compile(r"MUNGE:[A-Za-z0-9+/=]+:")
_WRONG_TIME = ("Rewound", "Expired")


@dataclass(frozen=True, slots=True)
class Refusal:
    code: str
    detail: str


async def read_refusal(origin: ObservedMachine, judge: ObservedMachine) -> Refusal | None:
    """Find out why munged on one machine refuses the credentials of another's; None where it accepts them or gives no
    answer. munged has a clock of its own: the machine's may be right, and Slurm only says that a node does not answer.
    """
    made = (await origin.read("timeout 10 munge --no-input")).stdout.strip()
    if not _CREDENTIAL.fullmatch(made):
        return None
    # It ends with a status of its own for each refusal.
    said = (await judge.read(f"printf %s {quoted(made)} | timeout 10 unmunge 2>&1 || true")).stdout
    return parse_refusal(said, origin.hostname, judge.hostname)


def parse_refusal(said: str, origin: str, judge: str) -> Refusal | None:
    # Of one that another key has made, it says so on standard error and nothing else.
    status = re.search(r"^(?:STATUS:|unmunge: Error:)\s*(\w+ credential)\b", said, re.MULTILINE)
    if status is None:
        return None
    words = f"munged on {judge} refuses the credentials of {origin} ({status[1]})"
    times = [re.search(rf"^{key}_TIME:.*\((\d+)\)$", said, re.MULTILINE) for key in ("ENCODE", "DECODE")]
    if status[1].startswith(_WRONG_TIME) and times[0] and times[1]:
        ahead = int(times[0][1]) - int(times[1][1])
        return Refusal("clock_skew", f"{words}: its clock on {origin} is {say_seconds(ahead)} that on {judge}")
    return Refusal("munge_refused", words)
