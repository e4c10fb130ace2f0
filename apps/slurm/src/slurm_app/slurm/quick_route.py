"""The route of a machine to itself, made quick while slurmdbd is asked many small questions.

Slurm's programs send a message in pieces, and the kernel holds each back until the one before is acknowledged, which
the other side does 40 ms later: half a second for an account, two seconds for all that a new cluster needs. Both sides
are one machine here, so its route to itself can be told to acknowledge at once; then all of it takes half a second.

Not for longer than that: where a program ends before it has read slurmdbd's last word, as sacct does, a quick route
makes slurmdbd log an error. The route as it was is kept until it is put back.
"""

from slurm_app import names
from slurm_app.slurm.script import STATE_DIRECTORY, quoted

KEPT_ROUTE = f"{STATE_DIRECTORY}/route"

RESTORE_ROUTE = f"""
if [ -e {KEPT_ROUTE} ]; then
    ip route change table local $(cat {KEPT_ROUTE}) || true
    rm -f {KEPT_ROUTE}
fi
"""


def quicken(address: str) -> str:
    """Where the address is not that of an interface, or there is no `ip`, everything only takes longer."""
    return f"""
route=$(ip route show table local exact {quoted(names.address(address))} 2>/dev/null || true)
case $route in
    '' | *quickack*) ;;
    *)
        echo "$route" >{KEPT_ROUTE}
        ip route change table local $route quickack 1 || true
        ;;
esac
"""
