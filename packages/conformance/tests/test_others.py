"""Things of others: chosen from what the app brings, made, looked at and removed."""

import random
import subprocess
from pathlib import Path

import pytest

from gpuaas_conformance.others import Things, things_of

BEFORE = {"/etc", "/etc/systemd/system", "/opt", "/var/lib", "root:x:0:0:root:/root:/bin/bash", "ssh.service enabled"}
BROUGHT = {
    "/opt/app",
    "/opt/app/program",
    "/opt/app/lib",
    "/opt/app/lib/one",
    "/etc/app",
    "/etc/app/token",
    "/usr/share/doc/app",
    "/usr/share/doc/app/copyright",
    "/var/lib/empty",
    "/var/lib/odd dir",
    "/var/lib/odd dir/file",
    "/etc/systemd/system/app.service",
    "/etc/systemd/system/multi-user.target.wants/app.service",
    "app:x:998:998::/var/lib/app:/usr/sbin/nologin",
    "app:x:998:",
    "app.service enabled",
}


def test_they_are_chosen_from_what_the_app_brings() -> None:
    things = things_of(BEFORE, BEFORE | BROUGHT, random.Random(1))
    assert things == Things(("/etc/app", "/opt/app"), ("/etc/systemd/system/app.service",), ("app",))
    assert len(things.each()) == 4
    assert things_of(BEFORE, BEFORE, random.Random(1)).each() == []


def test_no_more_of_a_kind_than_can_be_looked_at() -> None:
    many = {f"/opt/app{number}{end}" for number in range(9) for end in ("", "/file")}
    assert len(things_of(BEFORE, BEFORE | many, random.Random(1)).directories) == 3


@pytest.mark.parametrize(
    "damage", ["rm {}/of-others", "rm -r {}", "echo mine >{}/of-others", "chmod 0777 {}", "touch {}/x"]
)
def test_every_change_is_seen_and_all_goes_again(tmp_path: Path, damage: str) -> None:
    directory = tmp_path / "app"
    things = Things(directories=(str(directory),))

    def run(script: str) -> str:
        # Units are not made here.
        done = subprocess.run(
            ["bash", "-eu"], input=f"systemctl() {{ :; }}\n{script}", capture_output=True, text=True, check=True
        )
        return done.stdout

    run(things.make_script)
    before = run(things.look_script)
    assert before == run(things.look_script)
    run(damage.format(directory))
    assert run(things.look_script) != before
    run(things.remove_script)
    assert not directory.exists()
