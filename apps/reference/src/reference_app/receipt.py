"""Checks for leftovers on a machine. Each is a command that prints what is left."""

from collections.abc import Iterable

from reference_app.software import CONFIG_DIR, PROGRAM_DIR, RECORD_DIR, STATE_DIR, USER, Role

PATHS = (PROGRAM_DIR, f"{PROGRAM_DIR}.new", f"{PROGRAM_DIR}.old", CONFIG_DIR, STATE_DIR, RECORD_DIR)


def checks(leaving: Iterable[Role], staying: Iterable[Role], port: int) -> dict[str, str]:
    """For a machine that some roles leave, while others may stay on it."""
    gone, kept = list(leaving), set(staying)
    units = " ".join(role.unit for role in gone)
    found = {
        "units": f"for unit in {units}; do "
        '[ "$(systemctl show --property=LoadState --value "$unit")" = not-found ] || echo "$unit"; done',
        "configuration": f"ls {' '.join(f'{CONFIG_DIR}/{role}.json' for role in gone)} 2>/dev/null || true",
    }
    if Role.CONTROLLER in gone:
        found["port"] = f"ss -Hltn 'sport = :{port}'"
    if not kept:
        found |= {
            "processes": f"ps -e -o user:32=,pid=,comm= | grep '^{USER} ' || true",
            "users": f"getent passwd {USER} || true; getent group {USER} || true",
            "paths": f"ls -d {' '.join(PATHS)} 2>/dev/null || true",
        }
    return found
