"""A router on which every route declares its permission, where the route is declared."""

from collections.abc import Callable, Iterable
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute, APIWebSocketRoute

from gpuaas_contract.base import API_PREFIX
from gpuaas_platform.identity.rules.policy import Permission

Endpoint = Callable[..., Any]
PERMISSION_ATTRIBUTE = "__gpuaas_permission__"
SERVICE_ATTRIBUTE = "__gpuaas_service__"
"""The table of routes that an endpoint is in: the audit trail names it as the service that was asked."""


class Routes:
    def __init__(self, tag: str, prefix: str = API_PREFIX) -> None:
        self._tag = tag
        self.router = APIRouter(prefix=prefix, tags=[tag])

    def get(self, path: str, permission: Permission, **options: Any) -> Callable[[Endpoint], Endpoint]:
        return self._declare("GET", path, permission, **options)

    def post(self, path: str, permission: Permission, **options: Any) -> Callable[[Endpoint], Endpoint]:
        return self._declare("POST", path, permission, **options)

    def put(self, path: str, permission: Permission, **options: Any) -> Callable[[Endpoint], Endpoint]:
        return self._declare("PUT", path, permission, **options)

    def patch(self, path: str, permission: Permission, **options: Any) -> Callable[[Endpoint], Endpoint]:
        return self._declare("PATCH", path, permission, **options)

    def delete(self, path: str, permission: Permission, **options: Any) -> Callable[[Endpoint], Endpoint]:
        return self._declare("DELETE", path, permission, **options)

    def _declare(
        self, method: str, path: str, permission: Permission, **options: Any
    ) -> Callable[[Endpoint], Endpoint]:
        def decorate(endpoint: Endpoint) -> Endpoint:
            setattr(endpoint, PERMISSION_ATTRIBUTE, permission)
            setattr(endpoint, SERVICE_ATTRIBUTE, self._tag)
            self.router.add_api_route(
                path,
                endpoint,
                methods=[method],
                operation_id=endpoint.__name__,
                openapi_extra={"x-permission": permission.value},
                **options,
            )
            return endpoint

        return decorate

    def websocket(self, path: str, permission: Permission) -> Callable[[Endpoint], Endpoint]:
        def decorate(endpoint: Endpoint) -> Endpoint:
            setattr(endpoint, PERMISSION_ATTRIBUTE, permission)
            setattr(endpoint, SERVICE_ATTRIBUTE, self._tag)
            self.router.add_api_websocket_route(path, endpoint)
            return endpoint

        return decorate


def permission_of(route: APIRoute | APIWebSocketRoute) -> Permission:
    permission = getattr(route.endpoint, PERMISSION_ATTRIBUTE, None)
    if not isinstance(permission, Permission):
        raise RuntimeError(f"route {route.path} declares no permission")
    return permission


def add_routes(app: FastAPI, tables: Iterable[Routes]) -> None:
    """Flat, not as included routers: so that `app.routes` shows every route there is, and matching is one loop."""
    for table in tables:
        app.router.routes.extend(table.router.routes)


def check_permissions(app: FastAPI) -> None:
    """A route that declares no permission must not come up, nor anything that could hide one."""
    for route in app.routes:
        if isinstance(route, APIRoute | APIWebSocketRoute):
            permission_of(route)
        elif getattr(route, "path", None) != app.openapi_url:
            raise RuntimeError(f"{route!r} is not a route that can declare a permission")
