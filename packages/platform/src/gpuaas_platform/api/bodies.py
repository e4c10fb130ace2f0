"""The bodies of requests: which are files, and the fingerprint of the others."""

import re

from fastapi import Request

from gpuaas_platform.services.platform import Platform

UPLOAD = re.compile(r"^/v1/apps/[^/]+/artifacts/[^/]+$")


async def fingerprint_of(request: Request) -> str:
    platform: Platform = request.app.state.platform
    # A file is not read for this: its digest is in the path.
    body = b"" if UPLOAD.match(request.url.path) else await request.body()
    return platform.fingerprints.of(request.method, f"{request.url.path}?{request.url.query}", body)
