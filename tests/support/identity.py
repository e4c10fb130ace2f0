"""Shared parts of the tests of identity."""

import secrets

import httpx

PASSWORD = "a long enough password"


def unique(word: str) -> str:
    return f"{word}-{secrets.token_hex(4)}"


async def status_everywhere(token: str, *urls: str) -> set[int]:
    """List the answers of several API processes to one token."""
    found = set()
    for url in urls:
        async with httpx.AsyncClient(base_url=url) as http:
            answer = await http.get("/v1/principal", headers={"Authorization": f"Bearer {token}"})
            found.add(answer.status_code)
    return found
