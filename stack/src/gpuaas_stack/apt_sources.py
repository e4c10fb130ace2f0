"""The host's own Debian package sources, in both of apt's formats, as far as they serve one suite. Addresses
are read at run time and never written anywhere that outlives the build."""

from __future__ import annotations

import hashlib
import subprocess
from dataclasses import dataclass
from pathlib import Path

from gpuaas_stack.errors import StackError

# Options of the host's apt without which its sources may not be usable at all.
CARRIED_OPTIONS = ("Acquire::http::Proxy", "Acquire::https::Proxy", "Acquire::Check-Valid-Until")


@dataclass(frozen=True)
class AptSources:
    stanzas: tuple[str, ...]  # deb822
    lines: tuple[str, ...]  # one line each
    options: tuple[str, ...]

    def fingerprint(self) -> str:
        text = "\n".join((*self.stanzas, *self.lines))
        return hashlib.sha256(text.encode()).hexdigest()

    def write(self, directory: Path) -> list[str]:
        """Write the files that mmdebstrap takes as its mirrors, and return their paths."""
        written = []
        if self.stanzas:
            path = directory / "host.sources"
            path.write_text("\n\n".join(self.stanzas) + "\n")
            written.append(str(path))
        if self.lines:
            path = directory / "host.list"
            path.write_text("\n".join(self.lines) + "\n")
            written.append(str(path))
        return written


def read_apt_sources(suite: str, etc: Path = Path("/etc/apt")) -> AptSources:
    files = [*sorted((etc / "sources.list.d").glob("*.sources"))]
    stanzas = [
        stanza
        for file in files
        for stanza in _without_comments(file.read_text()).split("\n\n")
        if _stanza_serves(stanza, suite)
    ]
    lists = [etc / "sources.list", *sorted((etc / "sources.list.d").glob("*.list"))]
    lines = [
        line
        for file in lists
        if file.exists()
        for line in _without_comments(file.read_text()).splitlines()
        if _line_serves(line, suite)
    ]
    if not stanzas and not lines:
        raise StackError(f"cannot find a Debian source for {suite} in {etc}: the slice image is made from it")
    return AptSources(tuple(stanzas), tuple(lines), tuple(_carried_options()))


def _without_comments(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith("#"))


def _ours(suites: list[str], components: list[str], suite: str) -> bool:
    known = {suite, f"{suite}-updates", f"{suite}-security"}
    return bool(suites) and set(suites) <= known and "main" in components


def _stanza_serves(stanza: str, suite: str) -> bool:
    fields = {
        key.strip().lower(): value.split()
        for key, separator, value in (line.partition(":") for line in stanza.splitlines())
        if separator and not key.startswith((" ", "\t"))
    }
    if fields.get("enabled") == ["no"] or "deb" not in fields.get("types", []):
        return False
    return _ours(fields.get("suites", []), fields.get("components", []), suite)


def _line_serves(line: str, suite: str) -> bool:
    head, bracket, rest = line.partition("[")
    words = (head + rest.partition("]")[2] if bracket else line).split()
    return len(words) >= 4 and words[0] == "deb" and _ours([words[2]], words[3:], suite)


def _carried_options() -> list[str]:
    dump = subprocess.run(["apt-config", "dump"], check=True, capture_output=True, text=True).stdout
    carried = [line.rstrip(";") for line in dump.splitlines() if line.split(" ", 1)[0] in CARRIED_OPTIONS]
    return [option for option in carried if not option.endswith('""')]
