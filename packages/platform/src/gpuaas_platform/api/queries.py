"""Parameters that no route has are refused, like unknown fields: a filter that is misspelt would show everything."""

from collections.abc import Iterator

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from gpuaas_contract.problems import Code, FieldError
from gpuaas_platform.core.errors import LONGEST, MOST_ERRORS, Refusal


def check_query(request: Request) -> None:
    if not request.url.query:
        return
    route: APIRoute = request.scope["route"]
    known = set(_names(route.dependant))
    unknown = sorted(set(request.query_params) - known)[:MOST_ERRORS]
    if unknown:
        takes = f"takes {', '.join(sorted(known))}" if known else "takes no parameters"
        errors = [FieldError(pointer=f"query/{_shown(name)}", detail="no such parameter") for name in unknown]
        raise Refusal(Code.INVALID_REQUEST, f"the request is not valid: its query {takes}", errors=errors)


def _names(dependant: Dependant) -> Iterator[str]:
    for parameter in dependant.query_params:
        yield parameter.alias
    for inner in dependant.dependencies:
        yield from _names(inner)


def _shown(name: str) -> str:
    return name[:LONGEST].encode(errors="replace").decode()
