"""The receipt of a machine: the record says what to look for; the port is looked for beside it."""

from collections.abc import Iterable

from gpuaas_sdk import Machine, MachineReceipt

from reference_app.software import RECORD, Role, belongings

# nft is among the programs of root, which not every shell of root looks for.
_FIREWALL = """
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
if [ -n "$(ours unit)" ] && command -v nft >/dev/null; then
  rules=$(nft list ruleset)
  sed -nE 's/^[[:space:]]*(.*port .*\\b{port}\\b.*)/\\1/p' <<<"$rules"
fi
"""


def checks(leaving: Iterable[Role], port: int) -> dict[str, str]:
    """Commands that print what is left beside the names on the record, of which `ours` prints those of a kind: who
    listens on a machine to which we brought no unit is somebody else."""
    if Role.CONTROLLER not in set(leaving):
        return {}
    return {
        "port": f"if [ -n \"$(ours unit)\" ]; then ss -Hltn 'sport = :{port}'; fi",
        "firewall": _FIREWALL.format(port=port).strip(),
    }


async def prove_removed(
    machine: Machine, leaving: Iterable[Role], staying: Iterable[Role], port: int, *, came: bool = True
) -> MachineReceipt:
    """`came` is False where no member of the machine ever came to the step that writes the record."""
    gone, kept = list(leaving), list(staying)
    return await RECORD.prove_removed(machine, belongings(gone, kept), checks(gone, port), came=came)
