"""The Debian package with the plug-in, made on the host that makes the bundle and for the Slurm of that bundle.

It is a package so that install, removal, record and receipt treat it like any other. Its version names Slurm's and the
sources; it depends on exactly that Slurm, and a plug-in for another version is refused by Slurm itself.
"""

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

from slurm_app.errors import RefusedError

PACKAGE = "gpuaas-slurm-limits"
DIRECTORY = "/usr/lib/gpuaas-slurm"
PLUGIN, PROLOG, EPILOG = (f"{DIRECTORY}/{name}" for name in ("limits.so", "prolog", "epilog"))
SUMS = f"{DIRECTORY}/SHA256SUMS"
HEADERS = "libslurm-dev"
_SOURCES = ("limits.c", "functions.sh", "prolog.sh", "epilog.sh")
_FORMAT = "1"

Fetch = Callable[[str], Path]
"""Download the newest package of this name from the archive."""


def source(name: str) -> str:
    return (files(__package__) / name).read_text()


def sources_digest() -> str:
    """Changes with everything that the package is made of, except Slurm itself."""
    parts = [_FORMAT, *(source(name) for name in _SOURCES)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def ensure_repository(cache: Path, debian: Path, fetch: Fetch, *, refresh: bool) -> Path:
    """Make the package where it is not there yet; return sources for apt: Debian's own, and a directory with it."""
    repository = cache / f"limits-{sources_digest()}"
    if refresh or not (repository / "Packages").exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="limits-", dir=cache) as work:
            made = Path(work) / "repository"
            made.mkdir()
            build(fetch(HEADERS), made)
            (made / "Packages").write_text(_run(["dpkg-scanpackages", "--multiversion", "."], cwd=made))
            shutil.rmtree(repository, ignore_errors=True)
            made.rename(repository)
            repository.chmod(0o755)
    sources = repository / debian.name
    sources.write_text(f"{debian.read_text().rstrip()}\n{_entry(debian, repository)}")
    return sources


def _entry(debian: Path, repository: Path) -> str:
    # copy, not file: apt leaves packages of the latter where they are, and lists them as if they had been fetched.
    if debian.suffix == ".sources":
        return f"\nTypes: deb\nURIs: copy:{repository}\nSuites: ./\nTrusted: yes\n"
    return f"deb [trusted=yes] copy:{repository} ./\n"


def build(headers: Path, output: Path) -> Path:
    """Compile against the headers of this package and pack; the same sources and headers give the same bytes."""
    slurm = _run(["dpkg-deb", "--field", str(headers), "Version"]).strip()
    architecture = _run(["dpkg-deb", "--field", str(headers), "Architecture"]).strip()
    version = f"{slurm}+{sources_digest()}"
    with tempfile.TemporaryDirectory(prefix="limits-build-") as directory:
        work, root = Path(directory), Path(directory) / "root"
        target = root / DIRECTORY.lstrip("/")
        target.mkdir(parents=True)
        (root / "DEBIAN").mkdir()
        _run(["dpkg-deb", "--extract", str(headers), str(work / "headers")])
        (work / "limits.c").write_text(source("limits.c"))
        _run(
            [
                "gcc", "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-fstack-protector-strong",
                "-D_FORTIFY_SOURCE=2", "-Wl,-z,relro,-z,now", "-Wl,--build-id=none", "-Iheaders/usr/include",
                "-o", str(target / "limits.so"), "limits.c",
            ],
            cwd=work,
        )  # fmt: skip
        (target / "limits.so").chmod(0o644)
        for name in ("prolog", "epilog"):
            (target / name).write_text(f"#!/bin/bash\n{source('functions.sh')}\n{source(f'{name}.sh')}")
            (target / name).chmod(0o755)
        contents = {name: (target / name).read_bytes() for name in ("epilog", "limits.so", "prolog")}
        sums = [f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in contents.items()]
        (target / "SHA256SUMS").write_text("".join(sums))
        (root / "DEBIAN" / "control").write_text(
            f"Package: {PACKAGE}\nVersion: {version}\nArchitecture: {architecture}\n"
            "Maintainer: GPUaaS Slurm app <root@localhost>\nSection: admin\nPriority: optional\n"
            f"Depends: slurm-client (= {slurm})\nDescription: limits of Slurm jobs that hold for ordinary users\n"
        )
        for directory_of_ours in (root, *(path for path in root.rglob("*") if path.is_dir())):
            directory_of_ours.chmod(0o755)
        deb = output / f"{PACKAGE}_{version}_{architecture}.deb"
        command = ["dpkg-deb", "--root-owner-group", "-Zgzip", "--build", str(root), str(deb)]
        _run(command, environment={"SOURCE_DATE_EPOCH": "0"})
        return deb


def _run(command: list[str], *, cwd: Path | None = None, environment: dict[str, str] | None = None) -> str:
    variables = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", **(environment or {})}
    try:
        done = subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, check=True)
    except FileNotFoundError as error:
        raise RefusedError(
            "limits_not_built", f"cannot find {command[0]} on this host; make setup installs it"
        ) from error
    except subprocess.CalledProcessError as error:
        reason = str(error.stderr).strip()[-2_000:]
        raise RefusedError("limits_not_built", f"cannot make {PACKAGE}: {command[0]}: {reason}") from error
    return done.stdout
