"""The baseline record of a machine: read a copy of it, and restore it where it got lost."""

import base64

from gpuaas_sdk.machines.base import CommandError, Machine
from slurm_app.slurm.script import STATE_DIRECTORY, quoted, step

# The same content gives the same bytes, so that machines from one image have one copy.
_PACK = f"""
cd {STATE_DIRECTORY}
tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -c baseline bundle | gzip -n -6 | base64 -w0
"""
_RETURNED = f"{STATE_DIRECTORY}/returned.tar.gz"
# What a kill leaves half unpacked must not be taken for the record: each part appears whole, or not at all.
_UNPACK = f"""
if ! {{ [ -d "$state/baseline" ] && [ -d "$state/bundle" ]; }}; then
    rm -rf "$state/returned"
    mkdir "$state/returned"
    tar -xzf {quoted(_RETURNED)} -C "$state/returned"
    for part in baseline bundle; do
        if [ ! -d "$state/$part" ]; then mv "$state/returned/$part" "$state/$part"; fi
    done
fi
rm -rf "$state/returned" {quoted(_RETURNED)}
"""


async def read_record(machine: Machine) -> bytes:
    result = await machine.read(_PACK)
    if not result.ok:
        raise CommandError(f"read the record of {machine.hostname}", result)
    return base64.b64decode(result.stdout)


async def ensure_record_restored(machine: Machine, record: bytes) -> bool:
    """Return whether it had to be restored. A record that is there is never overwritten."""
    present = await machine.read(f"[ -d {STATE_DIRECTORY}/baseline ] && [ -d {STATE_DIRECTORY}/bundle ]")
    if present.ok:
        return False
    await machine.run_step("make-record-directory", step('mkdir -p "$state"', 'chmod 0700 "$state"'))
    await machine.write_file(_RETURNED, record, mode=0o600)
    await machine.run_step("bring-record-back", unpack_script())
    return True


def unpack_script() -> str:
    return step(_UNPACK)
