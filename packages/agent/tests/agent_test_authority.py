"""A real OpenSSH authority."""

import subprocess
from pathlib import Path

from gpuaas_contract.ids import new_id


class Authority:
    """An SSH authority made with ssh-keygen, for hosts and people alike."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.key = directory / "authority"
        self._keygen("-t", "ed25519", "-N", "", "-f", str(self.key))
        self.public = self.key.with_suffix(".pub").read_text().strip()

    def sign_host(self, public_key: str, name: str) -> str:
        return self._sign(public_key, f"{new_id('host')}.pub", "-h", "-I", name, "-n", name, "-V", "-1m:+1h")

    def make_user(self, principal: str) -> Path:
        key = self.directory / f"user-{principal}"
        self._keygen("-t", "ed25519", "-N", "", "-f", str(key))
        public = key.with_suffix(".pub")
        self._keygen("-s", str(self.key), "-I", "user", "-n", principal, "-V", "-1m:+1h", str(public))
        return key

    def _sign(self, public_key: str, name: str, *arguments: str) -> str:
        path = self.directory / name
        path.write_text(public_key)
        self._keygen("-s", str(self.key), *arguments, str(path))
        return path.with_name(f"{path.stem}-cert.pub").read_text()

    def _keygen(self, *arguments: str) -> None:
        subprocess.run(["ssh-keygen", "-q", *arguments], check=True, stdin=subprocess.DEVNULL)
