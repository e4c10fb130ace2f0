"""What controllers hand over to be shown: bounded, and without secrets."""

import json
from typing import Any

from gpuaas_contract.problems import Code, FieldError
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.core.secret_looks import find_secret

EVIDENCE_LIMIT = 64 * 1024
DETAIL_LIMIT = 64 * 1024
RESULT_LIMIT = 1024 * 1024


def check_shown(value: Any, limit: int, what: str, pointer: str) -> None:
    if len(json.dumps(value)) > limit:
        raise Refusal(Code.TOO_LARGE, f"{what} is limited to {limit} bytes")
    if (found := find_secret(value, pointer)) is not None:
        where, looks_like = found
        detail = f"{what} holds what looks like {looks_like} at {where}; nothing of it was kept: leave it out"
        raise Refusal(Code.SECRET_SUSPECTED, detail, errors=[FieldError(pointer=where, detail=detail)])
