"""The package of the limits, what its probe says, and what counts as a phantom: from given facts."""

import subprocess
from pathlib import Path

import pytest

from slurm_app.errors import RefusedError
from slurm_app.limits import package
from slurm_app.slurm import config, limit_probe, phantoms
from slurm_app.slurm.facts import memory_for_jobs, parse_shape

from .answers import FACTS, SLURMD_C, facts_of

PROVEN = "".join(f"limit=a yes {part}\n" for part in limit_probe.PARTS if part != "memory") + "limit=a tries memory\n"


@pytest.fixture(scope="module")
def headers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package like libslurm-dev, with as much of Slurm's headers as the plug-in takes."""
    root = tmp_path_factory.mktemp("headers")
    (root / "DEBIAN").mkdir()
    include = root / "usr/include/slurm"
    include.mkdir(parents=True)
    (root / "DEBIAN/control").write_text(
        "Package: libslurm-dev\nVersion: 22.05.8-4\nArchitecture: amd64\nMaintainer: a\nDescription: a\n"
    )
    (include / "slurm.h").write_text(
        "#include <stdint.h>\n#define NO_VAL 0xfffffffe\ntypedef struct { uint32_t job_id; char *admin_comment; } "
        "job_desc_msg_t;\nvoid slurm_init_job_desc_msg(job_desc_msg_t *);\nint slurm_update_job(job_desc_msg_t *);\n"
    )
    (include / "spank.h").write_text(
        "typedef struct spank *spank_t;\n#define SPANK_PLUGIN(n, v) const char plugin_name[] = #n\n"
        "enum { S_JOB_ID, S_JOB_ALLOC_MEM, S_JOB_ALLOC_CORES };\n#define ESPANK_SUCCESS 0\n"
        "int spank_get_item(spank_t, int, ...);\nint spank_setenv(spank_t, const char *, const char *, int);\n"
        "void slurm_error(const char *, ...);\n"
    )
    deb = root.parent / "libslurm-dev_22.05.8-4_amd64.deb"
    subprocess.run(["dpkg-deb", "--build", str(root), str(deb)], check=True, capture_output=True)
    return deb


def test_the_package_is_for_exactly_that_slurm_and_always_the_same(headers: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    first.mkdir()
    second.mkdir()
    deb = package.build(headers, first)
    assert deb.read_bytes() == package.build(headers, second).read_bytes()
    fields = subprocess.run(["dpkg-deb", "--field", str(deb)], check=True, capture_output=True, text=True).stdout
    assert "Depends: slurm-client (= 22.05.8-4)\n" in fields
    subprocess.run(["dpkg-deb", "--extract", str(deb), str(tmp_path / "x")], check=True)
    installed = tmp_path / "x" / package.DIRECTORY.lstrip("/")
    check = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    said = subprocess.run(check, cwd=installed, check=True, capture_output=True, text=True).stdout
    assert said == "epilog: OK\nlimits.so: OK\nprolog: OK\n"
    for script in ("prolog", "epilog"):
        subprocess.run(["bash", "-n", str(installed / script)], check=True)


def test_a_package_that_is_none_is_refused_with_words(tmp_path: Path) -> None:
    none = tmp_path / "libslurm-dev_1_amd64.deb"
    none.write_bytes(b"no package")
    with pytest.raises(RefusedError, match="cannot make gpuaas-slurm-limits: dpkg-deb"):
        package.build(none, tmp_path)


@pytest.mark.parametrize("name", ["debian.sources", "sources.list"])
def test_the_repository_is_made_once_and_named_in_the_sources(headers: Path, tmp_path: Path, name: str) -> None:
    debian = tmp_path / name
    debian.write_text("Types: deb\n")
    asked = []

    def fetch(wanted: str) -> Path:
        asked.append(wanted)
        return headers

    first = package.ensure_repository(tmp_path / "cache", debian, fetch, refresh=False)
    assert package.ensure_repository(tmp_path / "cache", debian, fetch, refresh=False) == first
    assert asked == ["libslurm-dev"]
    assert f"copy:{first.parent}" in first.read_text()
    assert package.PACKAGE in (first.parent / "Packages").read_text()
    package.ensure_repository(tmp_path / "cache", debian, fetch, refresh=True)
    assert asked == ["libslurm-dev"] * 2


def test_all_parts_of_all_workers_must_be_proven() -> None:
    assert limit_probe.judge(PROVEN, ["a"]).holds is True
    both = limit_probe.judge(PROVEN, ["a", "b"])
    assert (both.holds, both.reason) == (None, "NotProven")
    assert "b: memory, processes" in both.message


def test_what_is_open_is_named() -> None:
    survived = limit_probe.judge(PROVEN + "limit=a no memory\n", ["a"])
    assert (survived.holds, survived.message) == (False, "a job of an ordinary user was not limited in a: memory")
    gpus = limit_probe.judge(PROVEN.replace("yes GPUs", "no GPUs"), ["a"])
    assert (gpus.holds, "a: GPUs" in gpus.message) == (False, True)


@pytest.mark.parametrize("text", ["", "limit=\n", "limit=a\n", "limit=a maybe memory\n", "limit=x yes memory\n"])
def test_an_answer_that_makes_no_sense_proves_nothing(text: str) -> None:
    assert limit_probe.judge(text, ["a"]).holds is None


def test_a_cluster_without_the_plug_in_is_named() -> None:
    assert limit_probe.judge("limit=absent\n", ["a"]) is limit_probe.EARLIER


def test_memory_is_left_to_the_daemons() -> None:
    assert memory_for_jobs(2048, beside_controller=False) == 2048 - 128 - 64
    assert memory_for_jobs(2048, beside_controller=True) == 2048 - 128 - 700 - 64
    assert memory_for_jobs(512, beside_controller=True) == 128, "never nothing"


def test_a_worker_with_the_package_checks_it_before_slurmd_starts() -> None:
    before = parse_shape(facts_of(FACTS + SLURMD_C))
    shape = parse_shape(facts_of(FACTS + SLURMD_C + "limits=installed\n"))
    assert (before.limits, before.memory_mib, shape.limits, shape.memory_mib) == (False, 2048, True, 1856)
    unit = config.render_slurmd_unit(shape, conf_server="10.0.0.9")
    assert f'ExecStartPre=/bin/sh -c "cd {package.DIRECTORY} && sha256sum --check' in unit
    assert "ExecStartPre" not in config.render_slurmd_unit(before, conf_server="10.0.0.9"), "as it was deployed"


def conf(*, limits: bool = True, **overrides: str) -> dict[str, str]:
    text = config.render_slurm_conf(
        cluster_name="demo", partition="main", host="node-1", address="10.0.0.1", tracking=config.LINUXPROC,
        memory_per_cpu=900, overrides=overrides, limits=limits,
    )  # fmt: skip
    return dict(line.split("=", 1) for line in text.splitlines() if not line.startswith("#"))


def test_memory_is_given_out_and_impossible_jobs_are_refused() -> None:
    settings = conf()
    assert (settings["SelectTypeParameters"], settings["DefMemPerCPU"]) == ("CR_Core_Memory", "900")
    assert (settings["EnforcePartLimits"], settings["PrologFlags"]) == ("ALL", "Alloc")
    assert (settings["Prolog"], settings["Epilog"]) == (package.PROLOG, package.EPILOG)
    assert (settings["MpiDefault"], settings["PropagateResourceLimits"]) == ("pmix", "NONE")
    assert config.render_plugstack_conf().endswith(f"\nrequired {package.PLUGIN}\n")


def test_no_override_takes_the_memory_limit_away() -> None:
    assert conf(SelectTypeParameters="CR_CPU")["SelectTypeParameters"] == "CR_CPU_Memory"
    assert conf(SelectTypeParameters="CR_Core_Memory")["SelectTypeParameters"] == "CR_Core_Memory"
    by_node = conf(DefMemPerNode="500")
    assert ("DefMemPerCPU" in by_node, by_node["DefMemPerNode"]) == (False, "500")
    assert conf(DefMemPerCPU="70")["DefMemPerCPU"] == "70"


@pytest.mark.parametrize(
    ("text", "seconds"), [("0:07", 7), ("12:03", 723), ("1:00:00", 3_600), ("2-01:00:00", 176_400), ("INVALID", 0)]
)
def test_elapsed_times_are_read(text: str, seconds: int) -> None:
    assert phantoms.parse_elapsed(text) == seconds


def test_gpus_have_the_type_that_the_driver_says() -> None:
    models = "gpu_model=1 NVIDIA A100-SXM4-80GB\ngpu_model=0 NVIDIA H100 PCIe\nlimits=installed\n"
    shape = parse_shape(facts_of(FACTS + SLURMD_C + models))
    assert shape.gpu_types == ("h100_pcie", "a100_sxm4_80gb")
    lines = config.render_gres_conf(shape.gpus, shape.gpu_types).splitlines()[1:]
    assert lines == ["Name=gpu Type=h100_pcie File=/dev/nvidia0", "Name=gpu Type=a100_sxm4_80gb File=/dev/nvidia1"]
    assert "Gres=gpu:h100_pcie:1,gpu:a100_sxm4_80gb:1" in config.render_node_conf(shape)


@pytest.mark.parametrize("models", ["", "gpu_model=0\n", "gpu_model=7 NVIDIA X\n", "gpu_model=0 $(reboot)\n"])
def test_a_type_that_is_unknown_or_hostile_is_left_out(models: str) -> None:
    shape = parse_shape(facts_of(FACTS + SLURMD_C + models + "limits=installed\n"))
    assert set("".join(shape.gpu_types)) <= set("reboot")
    shape = parse_shape(facts_of(FACTS + SLURMD_C + "gpu_model=0 NVIDIA A\n"))
    assert shape.gpu_types == (), "of a worker from before"
    assert "Gres=gpu:2" in config.render_node_conf(shape)


def test_a_retry_with_the_packages_of_an_earlier_version_asks_for_nothing_that_they_lack() -> None:
    assert not {"Prolog", "Epilog", "PrologFlags"} & set(conf(limits=False))
