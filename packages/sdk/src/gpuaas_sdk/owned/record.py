"""The record that an app keeps on a machine of what it brings there: written first, struck off last.

Whoever removes by name alone removes what others have under that name. So a name is put on the record, and synced to
disk, before the thing is made; only names on the record are removed; and the receipt is made from the record."""

import base64
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.resources import files

from gpuaas_contract.base import JsonObject
from gpuaas_sdk.machines.base import CommandError, Machine
from gpuaas_sdk.owned.belongings import Belongings
from gpuaas_sdk.runtime.errors import OperationFailed
from gpuaas_sdk.runtime.receipts import MachineReceipt, ReceiptCheck, probe

EXEMPT_KEPT = "exempt: what the app did not bring stays"
THE_RECORD = "the record from which the checks are made"
NO_RECORD = "none: the app has not brought anything that it wrote down"
_REFUSED = 9
_DIRECTORY = re.compile(r"/var/lib(/[A-Za-z0-9_.-]+)+", re.ASCII)
_CHECKS = {
    "units": "left unit",
    "users": "left user",
    "groups": "left group",
    "paths": "left_paths",
    "accounts": "left_accounts",
    "processes": "left_processes",
    "files": "left_files",
}
_RECORDED, _KEPT = "recorded", "kept"


def _load() -> str:
    text = (files(__package__) / "record.sh").read_text()
    # Comments are for the reader here, not for the wire.
    return "\n".join(line for line in text.splitlines() if line and not line.lstrip().startswith("#")) + "\n"


_FUNCTIONS = _load()


@dataclass(frozen=True, slots=True)
class MachineRecord:
    """One app's record on a machine; the app's next instance there goes on with it."""

    directory: str
    """Below /var/lib, of the app alone: nobody but root can read it."""
    names: Belongings
    """All that the app ever brings to any machine. What a single call is about is part of it."""
    parts: tuple[str, ...] = ("brought", "kept")
    """The files and directories in it that make up a copy of it."""

    def __post_init__(self) -> None:
        if not _DIRECTORY.fullmatch(self.directory) or ".." in self.directory:
            raise ValueError(f"not a directory for a record: {self.directory!r}; it is below /var/lib")

    def functions(self, names: Belongings) -> str:
        """Return the bash in front of everything below: functions, and the names that they are about."""
        everything = self.names.entries
        if unknown := [entry for entry in names.entries if entry not in everything]:
            raise ValueError(f"cannot record {unknown[0]}: it is not among the names of {self.directory}")
        arrays = "\n".join(
            f"{name}=({' '.join(shlex.quote(entry) for entry in entries)})"
            for name, entries in (("all_entries", everything), ("entries", names.entries))
        )
        return f"{_FUNCTIONS}record={self.directory}\n{arrays}\n"

    # Before something is brought

    async def ensure_brought(self, machine: Machine, names: Belongings, *, step: str = "record") -> JsonObject:
        """Write down that the app is about to bring these names. Where one of them is there and is not the app's,
        refuse with `machine_not_clean`: that is noted as well, and stays untouched."""
        try:
            done = await machine.run_step(step, self.bring_script(names))
        except CommandError as error:
            if error.result.exit_status != _REFUSED:
                raise
            found = ", ".join(error.result.stdout.split("\n")).strip(", ")
            detail = f"{machine.hostname} has {found} already, and not from this app; move it away, or choose another"
            raise OperationFailed("machine_not_clean", detail, retryable=True) from None
        return {"recorded": done.stdout.strip()}

    def bring_script(self, names: Belongings, *, refuse: bool = True) -> str:
        """Without `refuse`, what is there already is left out of the record, and the app goes on beside it."""
        return f"{self.functions(names)}bring {'refuse' if refuse else 'keep'}\nrecorded\n"

    # Removal

    async def ensure_removed(self, machine: Machine, names: Belongings, *, step: str = "remove") -> JsonObject:
        """Remove those of these names that are on the record: units first, users last. Without a record, nothing."""
        done = await machine.run_step(step, self.remove_script(names))
        return {"recorded": done.stdout.strip() or NO_RECORD}

    def remove_script(self, names: Belongings) -> str:
        return (
            f"{self.functions(names)}hold_record\nensure_listed\nrelease_record\n"
            "remove_units\nremove_paths\nremove_directories\nremove_users\nrecorded\n"
        )

    async def prove_removed(
        self, machine: Machine, names: Belongings, more: Mapping[str, str] | None = None, *, came: bool = True
    ) -> MachineReceipt:
        """Look for what is left of these names; where nothing is, strike them off the record. `more` are checks of the
        app's own, made in the same round trip, which may use the functions of the record.

        `came` is False where the app is known never to have begun here (`OperationContext.members_before`): then a
        machine without a record has not lost it, and what it has is somebody else's."""
        functions = self.functions(names)
        commands = {_RECORDED: "recorded", **_CHECKS, _KEPT: "kept_of_others", **(more or {})}
        found = judge_by_record(await probe(machine, commands, functions=functions), came=came)
        if not found.clean:
            return found
        await machine.run_step("forget-record", self.forget_script(names))
        return found.with_checks(*(await probe(machine, {"record": "still_recorded"}, functions=functions)).checks)

    def forget_script(self, names: Belongings) -> str:
        return f"{self.functions(names)}forget\n"

    # A copy elsewhere

    async def read_copy(self, machine: Machine) -> bytes:
        """Return the record as an archive. The same record gives the same bytes, on whichever machine."""
        parts = " ".join(map(shlex.quote, self.parts))
        result = await machine.read(
            f"cd {self.directory}\nparts=()\n"
            f'for part in {parts}; do if [ -e "$part" ]; then parts+=("$part"); fi; done\n'
            "tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -c "
            '"${parts[@]}" | gzip -n -6 | base64 -w0\n'
        )
        if not result.ok:
            raise CommandError(f"read the record of {machine.hostname}", result)
        return base64.b64decode(result.stdout)

    async def ensure_restored(self, machine: Machine, copy: bytes, *, needed: tuple[str, ...]) -> bool:
        """Restore the record from a copy where one of the `needed` parts is lost; return whether it was. What is there
        is never overwritten."""
        present = " && ".join(f"[ -e {self.directory}/{shlex.quote(part)} ]" for part in needed)
        if (await machine.read(present)).ok:
            return False
        await machine.run_step("make-record-directory", f"mkdir -p {self.directory}\nchmod 0700 {self.directory}\n")
        await machine.write_file(f"{self.directory}/returned.tar.gz", copy, mode=0o600)
        await machine.run_step("bring-record-back", self.restore_script())
        return True

    def restore_script(self) -> str:
        """Unpack the returned copy. What a kill left half unpacked is not taken for the record: each part appears
        whole, or not at all."""
        return f"""
cd {self.directory}
if [ -e returned.tar.gz ]; then
    rm -rf returned
    mkdir returned
    tar -xzf returned.tar.gz -C returned
    for part in {" ".join(map(shlex.quote, self.parts))}; do
        if [ ! -e "$part" ] && [ -e "returned/$part" ]; then mv "returned/$part" "$part"; fi
    done
    rm -rf returned returned.tar.gz
fi
"""


def judge_by_record(
    seen: MachineReceipt, exempt: Mapping[str, str] | None = None, *, came: bool = True
) -> MachineReceipt:
    """Judge what a probe with the check `recorded` found. Without a record it may be somebody else's: that is unknown,
    not a no, unless the app never came. What the checks in `exempt` find may stay, for the reason given there."""
    allowed = {_KEPT: EXEMPT_KEPT, **(exempt or {})}
    recorded = next((check for check in seen.checks if check.check == _RECORDED), None)
    without = recorded is None or recorded.ok is True

    def judged(check: ReceiptCheck) -> ReceiptCheck:
        if check is recorded and check.ok is not None:
            return replace(check, expected=THE_RECORD, found=NO_RECORD if without else check.found, ok=True)
        if check.ok is not False:
            return replace(check, expected=allowed.get(check.check, check.expected))
        if check.check in allowed:
            return replace(check, expected=allowed[check.check], ok=True)
        if not without:
            return check
        if not came:
            return replace(check, expected=EXEMPT_KEPT, ok=True)
        return replace(check, ok=None, found=f"unknown whose, as nothing was recorded before: {check.found}")

    return replace(seen, checks=tuple(judged(check) for check in seen.checks))
