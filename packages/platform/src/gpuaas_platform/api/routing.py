"""A router on which every route declares its permission, where the route is declared."""

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute, APIWebSocketRoute

from gpuaas_contract.base import API_PREFIX
from gpuaas_contract.problems import PROBLEM_MEDIA_TYPE, Problem
from gpuaas_platform.domain.policy import Permission

Endpoint = Callable[..., Any]
PERMISSION_ATTRIBUTE = "__gpuaas_permission__"
_ERROR = {"model": Problem, "content": {PROBLEM_MEDIA_TYPE: {}}, "description": "The request was refused"}


class Routes:
    def __init__(self, tag: str, prefix: str = API_PREFIX) -> None:
        self.router = APIRouter(prefix=prefix, tags=[tag])

    def get(self, path: str, permission: Permission, **options: Any) -> Callable[[Endpoint], Endpoint]:
        return self._declare("GET", path, permission, **options)

    def post(self, path: str, permission: Permission, **options: Any) -> Callable[[Endpoint], Endpoint]:
        return self._declare("POST", path, permission, **options)

    def put(self, path: str, permission: Permission, **options: Any) -> Callable[[Endpoint], Endpoint]:
        return self._declare("PUT", path, permission, **options)

    def _declare(
        self, method: str, path: str, permission: Permission, **options: Any
    ) -> Callable[[Endpoint], Endpoint]:
        def decorate(endpoint: Endpoint) -> Endpoint:
            setattr(endpoint, PERMISSION_ATTRIBUTE, permission)
            self.router.add_api_route(
                path,
                endpoint,
                methods=[method],
                operation_id=endpoint.__name__,
                responses={"4XX": _ERROR, "5XX": _ERROR},
                openapi_extra={"x-permission": permission.value},
                **options,
            )
            return endpoint

        return decorate

    def websocket(self, path: str, permission: Permission) -> Callable[[Endpoint], Endpoint]:
        def decorate(endpoint: Endpoint) -> Endpoint:
            setattr(endpoint, PERMISSION_ATTRIBUTE, permission)
            self.router.add_api_websocket_route(path, endpoint)
            return endpoint

        return decorate


def check_permissions(app: FastAPI) -> None:
    """A route that declares no permission must not come up."""
    for route in app.routes:
        if isinstance(route, APIRoute | APIWebSocketRoute) and not isinstance(
            getattr(route.endpoint, PERMISSION_ATTRIBUTE, None), Permission
        ):
            raise RuntimeError(f"route {route.path} declares no permission")
