"""The receipt of a machine: the record says what to look for; ports and processes are looked for beside it."""

from collections.abc import Iterable

from gpuaas_sdk import Machine, MachineReceipt

from reference_app.software import RECORD, Role, belongings


def checks(leaving: Iterable[Role], staying: Iterable[Role], port: int) -> dict[str, str]:
    """Commands that print what is left beside the names on the record, of which `ours` prints those of a kind: who
    listens on a machine to which we brought no unit is somebody else."""
    found = {}
    if Role.CONTROLLER in set(leaving):
        found["port"] = f"if [ -n \"$(ours unit)\" ]; then ss -Hltn 'sport = :{port}'; fi"
    if not set(staying):
        found["processes"] = (
            "for user in $(ours user); do ps -e -o user:32=,pid=,comm= | awk -v user=\"$user\" '$1 == user'; done"
        )
    return found


async def prove_removed(
    machine: Machine, leaving: Iterable[Role], staying: Iterable[Role], port: int, *, came: bool = True
) -> MachineReceipt:
    """`came` is False where no member of the machine ever came to the step that writes the record."""
    gone, kept = list(leaving), list(staying)
    return await RECORD.prove_removed(machine, belongings(gone, kept), checks(gone, kept, port), came=came)
