"""The embedded registry for real: who has no token is kept out, garbage is collected while it only reads."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from gpuaas_stack import users
from gpuaas_stack.registry import Registry
from gpuaas_stack.supervision import Supervision


def certificate() -> str:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(datetime.now(UTC) - timedelta(days=1))
    made = builder.not_valid_after(datetime.now(UTC) + timedelta(days=1)).sign(key, hashes.SHA256())
    return made.public_bytes(Encoding.PEM).decode()


def test_registry(supervision: Supervision, state_dir: Path, free_port: Callable[[], int]) -> None:
    registry = Registry(state_dir / "registry", free_port(), "http://platform.test")
    users.ensure_users()
    registry.trust(certificate())
    supervision.ensure_running()
    for read_only in (False, True, False):
        registry.prepare(read_only=read_only)
        supervision.ensure_service(registry.service(read_only=read_only))
        supervision.wait_ready("registry")
        with httpx.Client(base_url=f"http://127.0.0.1:{registry.port}/v2/", trust_env=False) as http:
            answer = http.get("")
            assert answer.status_code == 401
            assert 'realm="http://platform.test/v1/registry/token"' in answer.headers["www-authenticate"]
            assert http.post("apps/one/two/blobs/uploads/").status_code in {401, 405}
        if read_only:
            assert registry.collect_garbage()
    for private in (registry.certificates, registry.directory / "config.yml", registry.directory / "secret"):
        assert private.stat().st_mode & 0o077 == 0
