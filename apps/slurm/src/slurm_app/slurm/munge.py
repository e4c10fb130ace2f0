"""munged: one key for the whole cluster."""

from gpuaas_sdk.machines.base import Machine
from slurm_app.slurm.script import step

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
    """With a key, that one; without, the key that the machine has or makes itself."""
    if key is not None:
        # Not through the script: a key never stands in a script or an argument list.
        await machine.write_file(STAGED_KEY, key, mode=0o600)
    result = await machine.run_step("start-munge", start_script())
    return dict(line.split("=", 1) for line in result.stdout.splitlines() if "=" in line)
