"""The record of what an app brings to a machine, as its bash does it: in directories of the test's own."""

import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpuaas_sdk import Belongings, CommandError, CommandResult, MachineRecord, OperationFailed
from gpuaas_sdk.owned.record import NO_RECORD

DIRECTORY = "/var/lib/demo"
SHARED = Belongings(trees=("/opt/demo", "/srv/demo"), files=("/etc/demo/key",), directories=("/etc/demo",))
WORKER = Belongings(files=("/etc/demo/worker",))
RECORD = MachineRecord(DIRECTORY, SHARED | WORKER)
NOBODY_HAS_THE_NUMBER = "find() { :; }; stat() { echo nobody; }"
"""This host has accounts of its own, with files and processes."""


@dataclass
class Here:
    """This host stands for a machine: every directory that the scripts name is one below the test's own."""

    root: Path
    hostname: str = "here"
    address: str = "192.0.2.1"
    allocation_id: str = "alc_1"
    programs: str = ""
    """Bash that stands for programs of the machine."""

    def path(self, path: str) -> Path:
        return self.root / path.removeprefix("/")

    def _run(self, script: str) -> CommandResult:
        for place in (DIRECTORY, "/opt/demo", "/srv/demo", "/etc/demo"):
            script = script.replace(place, str(self.path(place)))
        script = f"{self.programs}\n{script}"
        done = subprocess.run(["bash", "-euo", "pipefail"], input=script, capture_output=True, text=True, check=False)
        return CommandResult(done.returncode, done.stdout.replace(str(self.root), ""), done.stderr)

    async def read(self, script: str, *, timeout: float = 30) -> CommandResult:
        return self._run(script)

    async def run_step(self, step: str, script: str, *, timeout: float = 300) -> CommandResult:
        done = self._run(script)
        if not done.ok:
            raise CommandError(step, done)
        return done

    async def write_file(
        self, path: str, content: str | bytes, *, mode: int = 0o644, owner: str = "root", group: str = "root"
    ) -> None:
        self.path(path).write_bytes(content.encode() if isinstance(content, str) else content)

    async def deliver(self, digest: str) -> str:
        raise NotImplementedError

    def make(self, path: str, content: str = "ours") -> None:
        self.path(path).parent.mkdir(parents=True, exist_ok=True)
        self.path(path).write_text(content)

    def files(self, below: str = "/") -> dict[str, str]:
        found = {p: p.read_text() for p in self.path(below).rglob("*") if p.is_file() and not p.is_symlink()}
        return {f"/{p.relative_to(self.root)}": text for p, text in found.items()}


@pytest.fixture
def machine(tmp_path: Path) -> Here:
    for name in ("etc", "opt", "srv", "var/lib"):
        (tmp_path / name).mkdir(parents=True)
    return Here(tmp_path)


async def bring_all(machine: Here) -> None:
    await RECORD.ensure_brought(machine, RECORD.names)
    machine.make("/opt/demo/program")
    machine.make("/etc/demo/key")
    machine.make("/etc/demo/worker")


async def test_what_was_brought_is_removed_and_the_record_goes_last(machine: Here) -> None:
    await bring_all(machine)
    removed = await RECORD.ensure_removed(machine, RECORD.names)
    assert str(removed["recorded"]).endswith(" 5 names")
    receipt = await RECORD.prove_removed(machine, RECORD.names, {"own": "ours tree >/dev/null"})
    assert receipt.clean, receipt.left
    checks = {check.check: check for check in receipt.checks}
    assert checks["recorded"].found == removed["recorded"], "the receipt names the record that it is made from"
    assert {"units", "users", "groups", "paths", "kept", "own", "record"} < checks.keys()
    assert machine.files() == {}
    assert not machine.path(DIRECTORY).exists()


@pytest.mark.parametrize("there", ["/opt/demo/thesis", "/srv/demo", "/etc/demo/notes", "/etc/demo/worker"])
async def test_what_was_there_before_is_refused_and_never_removed(machine: Here, there: str) -> None:
    machine.make(there, "years of work")
    for _ in range(2):
        with pytest.raises(OperationFailed, match=r"has .* already, and not from this app") as refused:
            await RECORD.ensure_brought(machine, RECORD.names)
        assert (refused.value.code, refused.value.retryable) == ("machine_not_clean", True)
    for _ in range(2):
        await RECORD.ensure_removed(machine, RECORD.names)
        receipt = await RECORD.prove_removed(machine, RECORD.names)
        assert receipt.clean, receipt.left
        assert {check.check: check for check in receipt.checks}["kept"].found != "nothing"
        assert machine.files()[there] == "years of work"
    machine.path(there).unlink()
    for parent in machine.path(there).parents[: 1 + there.count("/") - 2]:
        parent.rmdir()
    await bring_all(machine)
    assert "years of work" not in machine.files().values()


async def test_without_a_record_nothing_is_removed_and_nothing_is_proven(machine: Here) -> None:
    machine.make("/opt/demo/thesis")
    assert await RECORD.ensure_removed(machine, RECORD.names) == {"recorded": NO_RECORD}
    assert machine.files() == {"/opt/demo/thesis": "ours"}
    receipt = await RECORD.prove_removed(machine, RECORD.names)
    (left,) = receipt.left
    assert (left.check, left.ok) == ("paths", None)
    assert "unknown whose" in left.found
    machine.path("/opt/demo/thesis").unlink()
    machine.path("/opt/demo").rmdir()
    assert (await RECORD.prove_removed(machine, RECORD.names)).clean


async def test_a_machine_that_the_app_never_came_to_has_lost_no_record(machine: Here) -> None:
    machine.make("/opt/demo/thesis")
    receipt = await RECORD.prove_removed(machine, RECORD.names, came=False)
    assert receipt.clean
    assert {check.check: check.found for check in receipt.checks}["paths"] == "/opt/demo"
    assert machine.files() == {"/opt/demo/thesis": "ours"}


async def test_a_file_of_somebody_else_in_a_shared_directory_stays_and_is_listed(machine: Here) -> None:
    await bring_all(machine)
    machine.make("/etc/demo/mine", "by hand")
    machine.make("/etc/demo/.gpuaas.AbCd1234", "half a file")
    await RECORD.ensure_removed(machine, RECORD.names)
    receipt = await RECORD.prove_removed(machine, RECORD.names)
    assert receipt.clean
    assert {check.check: check.found for check in receipt.checks}["kept"] == "/etc/demo/mine"
    assert machine.files() == {"/etc/demo/mine": "by hand"}


@pytest.mark.parametrize(("number", "gone"), [(998, True), (64030, True), (1000, False), (59999, False)])
async def test_an_account_of_a_person_is_never_removed(machine: Here, number: int, gone: bool) -> None:
    record = MachineRecord(DIRECTORY, Belongings(users=("demo",)))
    machine.programs = f"""
getent() {{ if [ -e {machine.root}/$1 ]; then echo demo:x:{number}:; else [ $# = 1 ]; fi; }}
userdel() {{ rm {machine.root}/passwd; }}
groupdel() {{ rm {machine.root}/group; }}
{NOBODY_HAS_THE_NUMBER}
"""
    await record.ensure_brought(machine, record.names)
    machine.make("/passwd")
    machine.make("/group")
    await record.ensure_removed(machine, record.names)
    receipt = await record.prove_removed(machine, record.names)
    assert receipt.clean
    assert machine.path("/passwd").exists() is not gone
    kept = {check.check: check.found for check in receipt.checks}["kept"]
    assert kept == ("nothing" if gone else "group demo\nuser demo")


async def test_what_has_the_number_of_an_account_that_is_gone_was_left_by_it(machine: Here) -> None:
    record = MachineRecord(DIRECTORY, Belongings(users=("demo",)))
    machine.programs = f"""
getent() {{
    if [ $# = 1 ]; then echo canary:x:998:; elif [ -e {machine.root}/$1 ]; then echo demo:x:998:; else return 2; fi
}}
userdel() {{ rm {machine.root}/passwd; }}
groupdel() {{ rm {machine.root}/group; }}
{NOBODY_HAS_THE_NUMBER}
find() {{ case "$*" in *"id 998 -print"*) echo /usr/local/canary ;; esac; }}
"""
    await record.ensure_brought(machine, record.names)
    machine.make("/passwd")
    machine.make("/group")
    # Also where it runs twice: the second time there is no account whose number could be asked for.
    for _ in range(2):
        await record.ensure_removed(machine, record.names)
    receipt = await record.prove_removed(machine, record.names)
    assert {check.check: check.found for check in receipt.left} == {
        "accounts": "user canary is demo\ngroup canary is demo",
        "files": "/usr/local/canary",
    }
    machine.programs = machine.programs.replace("canary:x:998:", "canary:x:997:").replace("id 998 -print", "id 997")
    assert (await record.prove_removed(machine, record.names)).clean
    assert machine.files(DIRECTORY) == {}, "the numbers go with the record"


async def test_what_is_left_keeps_its_name_on_the_record(machine: Here) -> None:
    await bring_all(machine)
    receipt = await RECORD.prove_removed(machine, RECORD.names, came=False)
    assert {check.check: check.ok for check in receipt.left} == {"paths": False}
    await RECORD.ensure_removed(machine, RECORD.names)
    assert machine.files("/opt") == {}


async def test_a_role_leaves_alone_and_its_names_with_it(machine: Here) -> None:
    await bring_all(machine)
    await RECORD.ensure_removed(machine, WORKER)
    assert (await RECORD.prove_removed(machine, WORKER)).clean
    assert machine.files("/etc") == {"/etc/demo/key": "ours"}
    # From now on that name may be somebody else's.
    machine.make("/etc/demo/worker", "by hand")
    with pytest.raises(OperationFailed):
        await RECORD.ensure_brought(machine, WORKER)
    await RECORD.ensure_removed(machine, RECORD.names)
    assert (await RECORD.prove_removed(machine, RECORD.names)).clean
    assert machine.files("/etc") == {"/etc/demo/worker": "by hand"}


async def test_the_record_is_on_disk_before_a_name_counts_as_brought(machine: Here) -> None:
    """Killed at any line: either the name is not on the record, or it is there whole."""
    lines = RECORD.bring_script(RECORD.names).splitlines()
    calls = next(number for number, line in enumerate(lines) if line.startswith("bring "))
    script = "\n".join([*lines[:calls], "sync() { kill -9 $$; }", *lines[calls:]])
    assert machine._run(script).exit_status == -9
    assert not machine.path(f"{DIRECTORY}/brought").exists()
    await bring_all(machine)
    await RECORD.ensure_removed(machine, RECORD.names)
    assert (await RECORD.prove_removed(machine, RECORD.names)).clean
    assert machine.files() == {}


async def test_records_of_earlier_skeletons_are_read(machine: Here) -> None:
    machine.make(f"{DIRECTORY}/before", "2026-11-17T00:00:00Z\n")
    for path in ("/opt/demo/program", "/etc/demo/key", "/etc/demo/worker"):
        machine.make(path)
    await RECORD.ensure_removed(machine, WORKER)
    assert (await RECORD.prove_removed(machine, WORKER)).clean
    await RECORD.ensure_removed(machine, RECORD.names)
    assert (await RECORD.prove_removed(machine, RECORD.names)).clean
    assert machine.files() == {}


async def test_a_snapshot_of_the_machine_says_what_was_there_before(machine: Here) -> None:
    for name, lines in {"users": "", "groups": "", "units": "", "paths": f"{machine.path('/srv/demo')}\n"}.items():
        machine.make(f"{DIRECTORY}/baseline/{name}", lines)
    machine.make("/srv/demo/thesis", "years of work")
    machine.make("/opt/demo/program")
    await RECORD.ensure_removed(machine, RECORD.names)
    assert machine.files("/srv") == {"/srv/demo/thesis": "years of work"}
    assert machine.files("/opt") == {}
    receipt = await RECORD.prove_removed(machine, RECORD.names)
    assert receipt.clean
    assert {check.check: check.found for check in receipt.checks}["kept"] == "tree /srv/demo"


@pytest.mark.parametrize(
    "wrong",
    [
        {"trees": ("/etc",)},
        {"trees": ("/",)},
        {"trees": ("",)},
        {"trees": ("opt/demo",)},
        {"trees": ("/opt/../etc",)},
        {"trees": ("/opt/demo ",)},
        {"files": ("/etc/demo/$(reboot)",)},
        {"files": ("/etc/demo/a\ntree /home/x",)},
        {"directories": ("/opt//demo",)},
        {"users": ("root; reboot",)},
        {"users": ("-r",)},
        {"units": ("../sshd.service",)},
        {"units": ("demo",)},
        {"units": (7,)},
    ],
)
def test_hostile_names_are_refused(wrong: dict[str, tuple[str, ...]]) -> None:
    with pytest.raises(ValueError, match="cannot own"):
        Belongings(**wrong)


@pytest.mark.parametrize("directory", ["", "/", "/etc/demo", "/var/lib", "/var/lib/..", "/var/lib/a b", "var/lib/a"])
def test_a_record_has_a_directory_of_its_own(directory: str) -> None:
    with pytest.raises(ValueError, match="not a directory for a record"):
        MachineRecord(directory, SHARED)


def test_a_name_that_the_record_does_not_know_is_refused() -> None:
    with pytest.raises(ValueError, match="not among the names"):
        RECORD.bring_script(Belongings(trees=("/opt/other",)))


# A copy elsewhere

COPIED = MachineRecord(DIRECTORY, SHARED, parts=("baseline", "bundle", "brought", "kept"))


@pytest.fixture
def returned(machine: Here) -> Here:
    """A machine that lost its record, to which the copy has just been brought."""
    packed = machine.root / "packed"
    machine.path(DIRECTORY).mkdir()
    with tarfile.open(machine.path(f"{DIRECTORY}/returned.tar.gz"), "w:gz") as archive:
        for part in ("baseline", "bundle"):
            (packed / part).mkdir(parents=True)
            (packed / part / "names").write_text(part)
            archive.add(packed / part, part)
    return machine


BOTH = {f"{DIRECTORY}/baseline/names": "baseline", f"{DIRECTORY}/bundle/names": "bundle"}


async def test_to_bring_it_back_twice_is_to_bring_it_back_once(returned: Here) -> None:
    for _ in range(2):
        await returned.run_step("back", COPIED.restore_script())
        assert returned.files(DIRECTORY) == BOTH


async def test_one_that_was_killed_while_it_unpacked_begins_anew(returned: Here) -> None:
    returned.path(f"{DIRECTORY}/returned/baseline").mkdir(parents=True)
    await returned.run_step("back", COPIED.restore_script())
    assert returned.files(DIRECTORY) == BOTH


async def test_what_is_there_is_never_overwritten(returned: Here) -> None:
    returned.make(f"{DIRECTORY}/baseline/names", "as it was before")
    await returned.run_step("back", COPIED.restore_script())
    assert returned.files(DIRECTORY) == {**BOTH, f"{DIRECTORY}/baseline/names": "as it was before"}


async def test_a_lost_record_comes_back_from_its_copy(machine: Here) -> None:
    await bring_all(machine)
    copy = await RECORD.read_copy(machine)
    assert copy == await RECORD.read_copy(machine)
    assert not await RECORD.ensure_restored(machine, copy, needed=("brought",))
    for path in machine.path(DIRECTORY).iterdir():
        path.unlink()
    assert await RECORD.ensure_restored(machine, copy, needed=("brought",))
    await RECORD.ensure_removed(machine, RECORD.names)
    assert machine.files("/opt") == {}


async def test_there_is_no_copy_of_no_record(machine: Here) -> None:
    with pytest.raises(CommandError, match="cannot read the record of here"):
        await RECORD.read_copy(machine)
