"""`slurm-app bundle`: the Debian packages that a slice image lacks, as one file that is an apt repository.

The same image, roles and sources give the same file: it is kept in the cache under the hash of these, and made
anew from the archive only with --refresh. Everything in it is sorted and without times, so that equal packages
give an equal digest.

Debian compresses packages with xz: 2.1 of the 4.7 CPU seconds that dpkg takes for a controller with a worker. In the
bundle they are compressed with zstd, which takes 0.4 of these, for a file that is half as large again. Nothing else of
a package changes; what vouches for it is the digest of the bundle.
"""

import fcntl
import hashlib
import io
import json
import lzma
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from slurm_app.errors import RefusedError
from slurm_app.slurm.roles import PACKAGES, Role

ARTIFACT = "packages"
"""Its name in the manifest."""
DEFAULT_CACHE = Path("/var/cache/gpuaas/bundles")
CACHE_SETTING = "GPUAAS_BUNDLE_CACHE"
SOURCES = (Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list"))
_AR_MAGIC = b"!<arch>\n"
_AR_HEADER = 60
_FORMAT = "3"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Bundle:
    path: Path
    digest: str
    size: int
    packages: int


def cache_directory() -> Path:
    return Path(os.environ.get(CACHE_SETTING) or DEFAULT_CACHE)


def find_sources() -> Path:
    """Find Debian's own sources: others of the host may be unreachable, and nothing is wanted from them."""
    for path in SOURCES:
        if path.is_file():
            return path
    raise RefusedError("no_sources", f"cannot find Debian's package sources: none of {[str(p) for p in SOURCES]}")


def cache_key(dpkg_status: bytes, sources: bytes) -> str:
    roles = json.dumps(PACKAGES, sort_keys=True).encode()
    return hashlib.sha256(b"\0".join([_FORMAT.encode(), dpkg_status, sources, roles])).hexdigest()[:32]


class Apt:
    """apt-get on the host, with lists and status that are not the host's."""

    def __init__(self, work: Path, status: Path, sources: Path) -> None:
        self.archives = work / "archives"
        self._empty = work / "empty"
        lists = work / "lists"
        for directory in (self.archives / "partial", self._empty / "partial", lists / "partial"):
            directory.mkdir(parents=True, exist_ok=True)
        settings = {
            "Dir::Etc::sourcelist": sources,
            "Dir::Etc::sourceparts": "-",
            "Dir::State::lists": lists,
            "Dir::State::status": status,
            "Dir::Cache::archives": f"{self.archives}/",
            "Dir::Cache::pkgcache": "",
            "Dir::Cache::srcpkgcache": "",
            "APT::Sandbox::User": "root",
            "APT::Keep-Downloaded-Packages": "true",
            "APT::Install-Recommends": "false",
            "Acquire::Languages": "none",
            "Acquire::Retries": "3",
        }
        self._options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
        self._lock = work / "lock"

    def run(self, *arguments: str) -> str:
        command = ["apt-get", "-qq", *self._options, *arguments]
        # apt itself fails at once where another one uses the same lists: two bundles may be made at a time.
        with self._lock.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RefusedError("apt_failed", f"cannot run apt-get {arguments[0]}: {done.stderr.strip()[-2_000:]}")
        return done.stdout

    def resolve(self, packages: Iterable[str]) -> list[Path]:
        """List the files that these packages take beyond what the status has, whether they are there yet or not."""
        # apt leaves out of this list what it has downloaded before, hence the empty cache.
        nowhere = f"Dir::Cache::archives={self._empty}/"
        uris = self.run("install", "--yes", "--print-uris", "-o", nowhere, *sorted(set(packages)))
        return sorted(self.archives / parse_uri_line(line) for line in uris.splitlines() if line.startswith("'"))

    def fetch(self, packages: Iterable[str]) -> list[Path]:
        """Download these files; return them, and nothing else that is in the cache."""
        wanted = sorted(set(packages))
        self.run("install", "--yes", "--download-only", *wanted)
        return self.resolve(wanted)


def parse_uri_line(line: str) -> str:
    """'http://…/munge_0.5.15-2_amd64.deb' munge_0.5.15-2_amd64.deb 97288 SHA256:…"""
    return line.split("' ", 1)[1].split(" ", 1)[0]


def with_quick_compression(deb: bytes) -> bytes:
    """Return the same package with its members compressed with zstd instead of xz. A .deb is an ar archive."""
    repacked = [deb[: len(_AR_MAGIC)]]
    position = len(_AR_MAGIC)
    while position < len(deb):
        header = deb[position : position + _AR_HEADER]
        name, size = header[:16].decode().strip().rstrip("/"), int(header[48:58])
        content = deb[position + _AR_HEADER : position + _AR_HEADER + size]
        position += _AR_HEADER + size + size % 2
        if name.endswith(".tar.xz"):
            name = f"{name.removesuffix('.xz')}.zst"
            content = compress(lzma.decompress(content))
        header = name.ljust(16).encode() + header[16:48] + str(len(content)).ljust(10).encode() + header[58:]
        repacked += [header, content, b"\n" * (len(content) % 2)]
    return b"".join(repacked)


def compress(content: bytes) -> bytes:
    """Compress with one thread, whose output depends on nothing but the content."""
    try:
        done = subprocess.run(
            ["zstd", "-q", "-3", "--single-thread", "-c"], input=content, capture_output=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise RefusedError("zstd_failed", f"cannot compress the packages with zstd: {error}") from error
    return done.stdout


def read_control(deb: Path) -> str:
    done = subprocess.run(["dpkg-deb", "--field", str(deb)], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def control_field(control: str, field: str) -> str:
    prefix = f"{field}: "
    return next(line[len(prefix) :] for line in control.splitlines() if line.startswith(prefix))


def plain_file_name(control: str) -> str:
    """Leave out the epoch, whose colon is quoted in the archive's names and unquoted by some readers."""
    version = control_field(control, "Version").split(":", 1)[-1]
    return f"{control_field(control, 'Package')}_{version}_{control_field(control, 'Architecture')}.deb"


def index_entry(control: str, file_name: str, content: bytes) -> str:
    return f"{control}\nFilename: ./{file_name}\nSize: {len(content)}\nSHA256: {hashlib.sha256(content).hexdigest()}\n"


def pack(debs: Iterable[Path], needs: Mapping[Role, Iterable[Path]], output: Path) -> int:
    """Write the bundle, small lists first, so that a machine can read them without unpacking the rest.

    `needs` has the files of each role alone: what only one role needs goes when that role goes.
    """
    entries: dict[str, bytes] = {}
    index: dict[str, str] = {}
    package_names: set[str] = set()
    for deb in debs:
        control, content = read_control(deb), with_quick_compression(deb.read_bytes())
        name = plain_file_name(control)
        entries[name] = content
        index[name] = index_entry(control, name, content)
        package_names.add(control_field(control, "Package"))
    head: dict[str, bytes] = {"names": "".join(f"{name}\n" for name in sorted(package_names)).encode()}
    for role, files in sorted(needs.items()):
        needed = sorted(control_field(read_control(deb), "Package") for deb in files)
        head[f"needs-{role.value}"] = "".join(f"{name}\n" for name in needed).encode()
    for role, packages in sorted(PACKAGES.items()):
        head[f"role-{role.value}"] = "".join(f"{name}\n" for name in sorted(packages)).encode()
    head["roles.json"] = json.dumps(PACKAGES, indent=2, sort_keys=True).encode()
    head["Packages"] = "\n".join(index[name] for name in sorted(index)).encode()
    temporary = output.with_name(f".{output.name}.{os.getpid()}")
    with tarfile.open(temporary, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in [*head.items(), *sorted(entries.items())]:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            member.mode = 0o644
            tar.addfile(member, io.BytesIO(content))
    temporary.replace(output)
    return len(entries)


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def make_bundle(*, output: Path, dpkg_status: Path, cache: Path, refresh: bool = False, say: Say = print) -> Bundle:
    sources = find_sources()
    key = cache_key(dpkg_status.read_bytes(), sources.read_bytes())
    kept = cache / f"{key}.tar"
    if refresh or not kept.exists():
        cache.mkdir(parents=True, exist_ok=True)
        apt = Apt(cache / "apt", dpkg_status, sources)
        say("Reading Debian's package lists …")
        apt.run("update")
        say("Fetching what the image lacks …")
        debs = apt.fetch(name for packages in PACKAGES.values() for name in packages)
        needs = {role: apt.resolve(packages) for role, packages in PACKAGES.items()}
        say(f"Packing {len(debs)} packages …")
        pack(debs, needs, kept)
    else:
        say(f"Using the bundle made before for this image ({kept})")
    output.parent.mkdir(parents=True, exist_ok=True)
    temporary = output.with_name(f".{output.name}.{os.getpid()}")
    shutil.copyfile(kept, temporary)
    temporary.replace(output)
    with tarfile.open(output) as tar:
        count = sum(name.endswith(".deb") for name in tar.getnames())
    bundle = Bundle(output, digest_of(output), output.stat().st_size, count)
    say(f"{bundle.packages} packages, {bundle.size / 1e6:.1f} MB, {bundle.digest}")
    return bundle
