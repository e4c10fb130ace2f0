"""The slice image: Debian 12 made on this host from the host's own package sources, cached by its content,
shared by all environments. Beside the image lies the list of packages in it, against which the package
bundles of apps are resolved."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import shutil
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from urllib.parse import quote, urlencode

import yaml

from gpuaas_agent.lxd import Lxd
from gpuaas_stack.apt_sources import AptSources, read_apt_sources
from gpuaas_stack.errors import StackError
from gpuaas_stack.lxd_client import talk

SUITE = "bookworm"
PACKAGES = (
    "systemd",
    "systemd-sysv",
    "systemd-resolved",
    "udev",  # without it systemd-networkd waits for ever for its link in a container
    "dbus",
    "openssh-server",
    "rsync",  # people bring data with it over `gpuaas ssh-config`
    "sudo",
    "iproute2",
    "iputils-ping",
    "procps",
    "netbase",
    "less",
    "vim-tiny",
)
HASH_PROPERTY = "user.gpuaas.recipe"
TEMPLATES = {
    "/etc/hostname": ("hostname.tpl", "{{ instance.name }}\n"),
    # The machine's own name is left to the bridge's name server: every machine, itself included, must
    # resolve it to the real address and not to loopback.
    "/etc/hosts": ("hosts.tpl", "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"),
}


@dataclass(frozen=True)
class SliceImage:
    directory: Path

    @property
    def recipe(self) -> str:
        return self.directory.name

    @property
    def metadata(self) -> Path:
        return self.directory / "metadata.tar.gz"

    @property
    def rootfs(self) -> Path:
        return self.directory / "rootfs.squashfs"

    @property
    def dpkg_status(self) -> Path:
        return self.directory / "dpkg-status"


def _hook() -> Path:
    return Path(str(resources.files("gpuaas_stack") / "recipes" / "slice-image.sh"))


def _architecture() -> str:
    done = subprocess.run(["dpkg", "--print-architecture"], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def recipe_hash(sources: AptSources) -> str:
    parts = [SUITE, _architecture(), *PACKAGES, _hook().read_text(), repr(TEMPLATES), sources.fingerprint()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def ensure_image(cache: Path) -> tuple[SliceImage, bool]:
    """Build the image unless the cache has one of this recipe. True if it was built now."""
    sources = read_apt_sources(SUITE)
    image = SliceImage(cache / recipe_hash(sources))
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if image.directory.is_dir():
            return image, False
        for killed in cache.glob(".build-*"):
            shutil.rmtree(killed)
        with tempfile.TemporaryDirectory(dir=cache, prefix=".build-") as work:
            _build(Path(work), sources)
            finished = Path(work) / "finished"
            finished.chmod(0o755)
            finished.rename(image.directory)
    return image, True


def _build(work: Path, sources: AptSources) -> None:
    rootfs, finished = work / "rootfs", work / "finished"
    finished.mkdir()
    command = ["mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", "--format=directory"]
    command += [f"--include={','.join(PACKAGES)}", f'--customize-hook=sh {_hook()} "$1"']
    command += [f"--aptopt={option}" for option in sources.options]
    command += [SUITE, str(rootfs), *sources.write(work)]
    # From a directory without secrets: mmdebstrap tests that its sandbox user can read where it stands.
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd="/")
    if done.returncode != 0:
        raise StackError("cannot build the slice image:\n" + "\n".join(done.stderr.splitlines()[-15:]))
    shutil.copyfile(rootfs / "var/lib/dpkg/status", finished / "dpkg-status")
    target = str(finished / "rootfs.squashfs")
    subprocess.run(
        ["mksquashfs", str(rootfs), target, "-comp", "lz4", "-noappend", "-quiet", "-no-progress"], check=True
    )
    write_metadata(finished / "metadata.tar.gz", int(rootfs.stat().st_mtime))


def write_metadata(path: Path, created: int) -> None:
    templates = {target: {"when": ["create", "copy"], "template": name} for target, (name, _) in TEMPLATES.items()}
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(_architecture(), _architecture())
    properties = {"description": "GPUaaS slice, Debian 12", "os": "debian", "release": SUITE}
    document = {"architecture": machine, "creation_date": created, "properties": properties}
    files = {"metadata.yaml": yaml.safe_dump(document | {"templates": templates})}
    files |= {f"templates/{name}": text for name, text in TEMPLATES.values()}
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime = len(text.encode()), created
            archive.addfile(entry, io.BytesIO(text.encode()))


def ensure_imported(socket: Path, image: SliceImage, alias: str) -> bool:
    """Make the alias point at this image. True if it had to be imported."""
    # Environments that come up at once share the alias, and LXD refuses the second import of the same image.
    with (image.directory.parent / ".import-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return talk(socket, "import the slice image", lambda lxd: _ensure_imported(lxd, image, alias))


async def _ensure_imported(lxd: Lxd, image: SliceImage, alias: str) -> bool:
    path = f"/1.0/images/aliases/{quote(alias, safe='')}"
    known = await lxd.find(path)
    old = str(known["target"]) if known else None
    if old:
        properties = (await lxd.request("GET", f"/1.0/images/{old}"))["properties"]
        if properties.get(HASH_PROPERTY) == image.recipe:
            return False
    fingerprint = await _import(lxd, image)
    if known is None:
        await lxd.request("POST", "/1.0/images/aliases", json={"name": alias, "target": fingerprint})
    else:
        await lxd.request("PUT", path, json={"target": fingerprint, "description": ""})
    if old and await lxd.find(f"/1.0/images/{old}"):
        # Machines made from the old image keep what they need of it.
        await lxd.request("DELETE", f"/1.0/images/{old}")
    return True


async def _import(lxd: Lxd, image: SliceImage) -> str:
    headers = {"X-LXD-properties": urlencode({HASH_PROPERTY: image.recipe}), "X-LXD-public": "0"}
    with contextlib.ExitStack() as opened:
        files = {
            part: (path.name, opened.enter_context(path.open("rb")))
            for part, path in (("metadata", image.metadata), ("rootfs", image.rootfs))
        }
        done = await lxd.request("POST", "/1.0/images", headers=headers, files=files)
    return str(done["fingerprint"])
