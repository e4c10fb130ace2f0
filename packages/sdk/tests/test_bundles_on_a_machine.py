"""Packages of a bundle on a real slice: installed without a network, and gone again as if they had never been there."""

import asyncio
from pathlib import Path

import pytest

from gpuaas_sdk import Belongings, DebianPackages, MachineRecord, OperationFailed
from gpuaas_sdk.machines.base import COPIED_ARTIFACTS
from gpuaas_sdk.machines.ssh import SshMachine

from .sdk_test_machines import SshdPlatform
from .test_bundles import make, write_archive

pytestmark = pytest.mark.machines
NAMES = Belongings(users=("sdkapp",), trees=("/opt/sdk-app",))
DIRECTORY = "/var/lib/gpuaas/sdk-app"
RECORD = MachineRecord(DIRECTORY, NAMES, parts=("baseline", "bundle", "brought", "kept"))
PACKAGES = DebianPackages(
    RECORD, ("head", "tail"), prepare="getent passwd sdkapp >/dev/null || useradd --system --user-group sdkapp"
)
STATE = (
    "dpkg-query -W -f '${binary:Package} ${Version} ${db:Status-Abbrev}\\n'; getent passwd; getent group; "
    "ls /usr/sbin/policy-rc.d /opt /usr/share 2>&1 || true"
)
INSTALLED = "dpkg-query -W -f '${Package} ' alpha beta gamma 2>/dev/null || true"


async def brought(platform: SshdPlatform, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> SshMachine:
    """A machine to which the bundle was brought as to one without an agent."""
    machine = await platform.machine(10, operation="op_bundle", instance="ins_bundle")
    await machine.run_step("make-room", f"mkdir -p {COPIED_ARTIFACTS}")
    path = f"{COPIED_ARTIFACTS}/bundle"
    await machine.write_file(path, await asyncio.to_thread(bundle.read_bytes))

    async def deliver(digest: str) -> str:
        return path

    monkeypatch.setattr(machine, "deliver", deliver)
    return machine


async def test_packages_come_from_the_bundle_and_go_without_a_trace(
    slice_platform: SshdPlatform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, _ = make(tmp_path, {"head": ["beta"], "tail": ["gamma"]}, sources=write_archive(tmp_path))
    machine = await brought(slice_platform, bundle, monkeypatch)
    before = (await machine.read(STATE)).stdout
    await PACKAGES.ensure_baseline_recorded(machine, NAMES)
    done = await PACKAGES.ensure_installed(machine, "sha256:00", ["head", "tail"])
    assert (done["missing"], done["added"]) == ("beta gamma", "3")
    assert (await machine.read(INSTALLED)).stdout == "alpha beta gamma "
    assert (await machine.read("getent passwd sdkapp")).ok
    again = await PACKAGES.ensure_installed(machine, "sha256:00", ["head", "tail"])
    assert (again["missing"], again["added"]) == ("", "3")
    # One that a kill left half there is made whole.
    await machine.run_step("break", f"dpkg --unpack {DIRECTORY}/none.deb || true; rm -f {DIRECTORY}/packages.done")
    assert (await PACKAGES.ensure_installed(machine, "sha256:00", ["head"]))["added"] == "3"

    await PACKAGES.ensure_removed(machine, Belongings(), ["tail"], ["head"])
    assert (await machine.read(INSTALLED)).stdout == "alpha beta ", "what the group that stays needs, stays"
    await machine.run_step("of-a-person", "mkdir -p /usr/share/mine; echo mine >/usr/share/mine/notes")
    assert (await PACKAGES.ensure_removed(machine, NAMES, ["head", "tail"]))["packages"] == "2"
    receipt = await RECORD.prove_removed(machine, NAMES, PACKAGES.checks())
    assert receipt.clean, receipt
    assert (await machine.read("cat /usr/share/mine/notes; rm -r /usr/share/mine")).stdout == "mine\n"
    assert (await machine.read(STATE)).stdout == before
    assert (await PACKAGES.ensure_removed(machine, NAMES)).get("skipped"), "without a record, nothing"
    await machine.close()


async def test_what_is_left_of_packages_is_found(
    slice_platform: SshdPlatform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, _ = make(tmp_path, {"head": ["beta"], "tail": ["gamma"]}, sources=write_archive(tmp_path))
    machine = await brought(slice_platform, bundle, monkeypatch)
    await PACKAGES.ensure_baseline_recorded(machine, NAMES)
    await PACKAGES.ensure_installed(machine, "sha256:00", ["head", "tail"])
    left = await RECORD.prove_removed(machine, NAMES, PACKAGES.checks())
    found = {check.check: check.found for check in left.checks if check.ok is False}
    assert found["packages"].split() == ["alpha", "beta", "gamma"]
    await PACKAGES.ensure_removed(machine, NAMES)
    assert (await RECORD.prove_removed(machine, NAMES, PACKAGES.checks())).clean
    await machine.close()


async def test_a_file_that_is_no_bundle_changes_nothing(
    slice_platform: SshdPlatform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nonsense").write_bytes(b"nonsense")
    machine = await brought(slice_platform, tmp_path / "nonsense", monkeypatch)
    before = (await machine.read(STATE)).stdout
    await PACKAGES.ensure_baseline_recorded(machine, NAMES)
    with pytest.raises(OperationFailed, match="not a bundle of Debian packages") as refused:
        await PACKAGES.ensure_installed(machine, "sha256:00", ["head"])
    assert refused.value.code == "bundle_does_not_fit"
    assert (await machine.read(f"ls -d {DIRECTORY} {COPIED_ARTIFACTS}")).exit_status == 2
    assert (await machine.read(STATE)).stdout == before
    await machine.close()
