"""A value that is shown only on request: never in a log line, a stack trace or a report."""

import base64
from typing import NoReturn

from gpuaas_contract.secret_deliveries import Encoding, UnwrappedSecret


class SecretValue:
    __slots__ = ("_content", "owner_id", "version")

    def __init__(self, owner_id: str, version: int, content: bytes) -> None:
        self.owner_id = owner_id
        self.version = version
        self._content = content

    @classmethod
    def from_answer(cls, answer: UnwrappedSecret) -> "SecretValue":
        is_base64 = answer.encoding == Encoding.BASE64
        content = base64.b64decode(answer.value) if is_base64 else answer.value.encode()
        return cls(answer.owner_id, answer.version, content)

    def reveal(self) -> bytes:
        return self._content

    def reveal_text(self) -> str:
        return self._content.decode()

    def __repr__(self) -> str:
        return f"SecretValue({self.owner_id}, version {self.version}, hidden)"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return repr(self)

    def __reduce__(self) -> NoReturn:
        raise TypeError("cannot serialize a secret value")
