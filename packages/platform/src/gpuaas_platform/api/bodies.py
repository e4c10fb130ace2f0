"""The fingerprint of what was asked."""

from fastapi import Request

from gpuaas_platform.platform import Platform


async def fingerprint_of(request: Request) -> str:
    platform: Platform = request.app.state.platform
    path = f"{request.url.path}?{request.url.query}"
    return platform.fingerprints.of(request.method, path, await request.body())
