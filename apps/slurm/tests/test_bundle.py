from pathlib import Path

import yaml

from gpuaas_contract.manifest import Manifest
from gpuaas_sdk.bundles.names import check_group, check_package
from slurm_app.bundle import GROUPS
from slurm_app.controller import HANDLERS
from slurm_app.slurm.config import MAX_WORKERS
from slurm_app.slurm.roles import PACKAGES

HERE = Path(__file__).parents[1]


def test_the_names_of_roles_and_packages_are_names() -> None:
    for role, packages in GROUPS.items():
        check_group(role)
        for package in packages:
            check_package(package)


def test_roles_need_no_more_than_they_should() -> None:
    worker = {name for role, names in PACKAGES.items() if role == "worker" for name in names}
    assert not [name for name in worker if name.startswith(("mariadb", "slurmctld", "slurmdbd"))]


def test_the_manifest_is_one() -> None:
    manifest = Manifest.model_validate(yaml.safe_load((HERE / "manifest.yaml").read_text()))
    assert manifest.primary.key == "controller"
    assert manifest.runtime.version == "22.05.8"
    # The manifest offers what is implemented, and nothing else.
    assert manifest.kinds == {*HANDLERS, "preflight"}
    worker = manifest.component("worker")
    assert worker is not None
    assert worker.max == MAX_WORKERS
    assert {mode.key: set(mode.actions) for mode in manifest.modes}["single_node"] == {
        "recover",
        "sync-people",
        "decommission",
    }
    pack = yaml.safe_load((HERE / "pack.yaml").read_text())
    assert pack["slug"] == manifest.slug
    assert (HERE / pack["manifest"]).exists()
