"""A platform of canned answers."""

from typing import Any

AT = "2026-01-01T00:00:00Z"
PROJECT = {
    "id": "prj_00000000000000000000000001",
    "tenant_id": "ten_00000000000000000000000001",
    "name": "research",
    "title": "Research",
    "revision": 1,
    "created_at": AT,
    "updated_at": AT,
}
INSTANCE = {
    "id": "ins_00000000000000000000000001",
    "project_id": PROJECT["id"],
    "app_slug": "demo",
    "app_version_id": "apv_1",
    "name": "first",
    "inputs": {},
    "placement_intent": [],
    "desired_state": "running",
    "generation": 1,
    "status": "running",
    "versions": {"app": "1.0.0", "expected_runtime": "demo 1"},
    "correlation_id": "cor_1",
    "revision": 1,
    "created_at": AT,
    "updated_at": AT,
}


class StubPlatform:
    """Answers by method and path; other requests get 404."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, Any]] = {"GET /v1/projects": (200, {"items": [PROJECT]})}
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.url = ""

    def answer(self, request: str, body: Any, status: int = 200) -> None:
        self.answers[request] = (status, body)

    def problem(self, request: str, code: str, status: int, **more: Any) -> None:
        body = {"type": "x", "title": code, "status": status, "detail": f"cannot: {code}", "code": code}
        self.answer(request, {**body, "correlation_id": "cor_stub", **more}, status)
