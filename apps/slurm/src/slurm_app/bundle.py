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
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from slurm_app.errors import RefusedError
from slurm_app.limits.package import ensure_repository
from slurm_app.slurm.roles import PACKAGES, Role

ARTIFACT = "packages"
"""Its name in the manifest."""
DEFAULT_CACHE = Path("/var/cache/gpuaas/bundles")
CACHE_SETTING = "GPUAAS_BUNDLE_CACHE"
SOURCES = (Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list"))
_AR_MAGIC = b"!<arch>\n"
_AR_HEADER = 60
_FORMAT = "4"

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
    return _output_of(["zstd", "-q", "-3", "--single-thread", "-c"], "zstd_failed", input=content)


def plain_file_name(deb: Path) -> str:
    """Leave out the epoch, whose colon is quoted in apt's names and unquoted by some readers."""
    package, version, rest = deb.name.split("_")
    return f"{package}_{version.rpartition('%3a')[2]}_{rest}"


def package_name(deb: Path) -> str:
    return deb.name.split("_", 1)[0]


def write_index(repository: Path) -> bytes:
    """Make the `Packages` of all packages in the directory, as apt reads it."""
    command = ["dpkg-scanpackages", "--multiversion", "--hash", "sha256", "."]
    return _output_of(command, "index_failed", cwd=repository)


def _output_of(command: list[str], code: str, *, input: bytes | None = None, cwd: Path | None = None) -> bytes:
    try:
        return subprocess.run(command, input=input, cwd=cwd, capture_output=True, check=True).stdout
    except FileNotFoundError as error:
        raise RefusedError(code, f"cannot find {command[0]} on this host") from error
    except subprocess.CalledProcessError as error:
        reason = error.stderr.decode(errors="replace").strip()[-2_000:]
        raise RefusedError(code, f"cannot run {command[0]}: {reason}") from error


def pack(debs: Iterable[Path], needs: Mapping[Role, Iterable[Path]], output: Path) -> int:
    """Write the bundle, small lists first, so that a machine can read them without unpacking the rest.

    The files are named as apt names them: name, version and architecture.
    `needs` has the files of each role alone: what only one role needs goes when that role goes.
    """
    with tempfile.TemporaryDirectory(prefix="slurm-bundle-") as directory:
        repository = Path(directory)
        package_names = set()
        for deb in debs:
            (repository / plain_file_name(deb)).write_bytes(with_quick_compression(deb.read_bytes()))
            package_names.add(package_name(deb))
        head = {"names": _lines(package_names)}
        for role, files in sorted(needs.items()):
            head[f"needs-{role.value}"] = _lines(package_name(deb) for deb in files)
        for role, packages in sorted(PACKAGES.items()):
            head[f"role-{role.value}"] = _lines(packages)
        head["roles.json"] = json.dumps(PACKAGES, indent=2, sort_keys=True).encode()
        head["Packages"] = write_index(repository)
        entries = sorted(repository.iterdir())
        temporary = output.with_name(f".{output.name}.{os.getpid()}")
        with tarfile.open(temporary, "w", format=tarfile.USTAR_FORMAT) as tar:
            for name, content in head.items():
                _add(tar, name, content)
            for deb in entries:
                _add(tar, deb.name, deb.read_bytes())
        temporary.replace(output)
    return len(entries)


def _lines(names: Iterable[str]) -> bytes:
    return "".join(f"{name}\n" for name in sorted(names)).encode()


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    member.mode = 0o644
    tar.addfile(member, io.BytesIO(content))


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def _with_limits(debian: Path, *, dpkg_status: Path, cache: Path, refresh: bool, say: Say) -> Path:
    """Return sources that also have the package of the limits; it is built for the Slurm that the archive has now."""

    def fetch(package: str) -> Path:
        say("Building the plug-in that limits jobs …")
        apt = Apt(cache / "apt", dpkg_status, debian)
        apt.run("update")
        return next(deb for deb in apt.fetch([package]) if package_name(deb) == package)

    return ensure_repository(cache, debian, fetch, refresh=refresh)


def make_bundle(*, output: Path, dpkg_status: Path, cache: Path, refresh: bool = False, say: Say = print) -> Bundle:
    sources = _with_limits(find_sources(), dpkg_status=dpkg_status, cache=cache, refresh=refresh, say=say)
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
