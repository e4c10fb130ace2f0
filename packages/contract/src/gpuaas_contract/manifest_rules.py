"""Find everything that is wrong with a manifest at once, each with a JSON pointer."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pydantic import ValidationError

from gpuaas_contract.json_schemas import depth_of, find_schema_problems
from gpuaas_contract.manifest import Manifest
from gpuaas_contract.operations import MEMBER_KINDS, Kind
from gpuaas_contract.problems import FieldError
from gpuaas_contract.schema_limits import SchemaTally

MANIFEST_LIMIT = 256 * 1024
DEPTH_LIMIT = 48
NEEDED_KINDS = (Kind.DEPLOY, Kind.DECOMMISSION)
INSTANCE_KINDS = frozenset(Kind) - MEMBER_KINDS

Rule = Callable[[Manifest], Iterator[FieldError]]
At = Callable[[str], None]


def _nobody(pointer: str) -> None:
    """Told of places where nobody waits for them."""


def find_problems(document: Any) -> list[FieldError]:
    """Check an arbitrary document: first its shape, which the rules need."""
    if depth_of(document) > DEPTH_LIMIT:
        return [FieldError(pointer="", detail=f"the manifest is nested more than {DEPTH_LIMIT} levels deep")]
    if len(json.dumps(document, default=str)) > MANIFEST_LIMIT:
        return [FieldError(pointer="", detail=f"the manifest has more than {MANIFEST_LIMIT} bytes")]
    try:
        manifest = Manifest.model_validate(document)
    except ValidationError as error:
        found = [FieldError(pointer=_pointer(e["loc"]), detail=_words(e)) for e in error.errors()]
        return found + _schemas_of(document)
    return find_manifest_problems(manifest)


def find_manifest_problems(manifest: Manifest, at: At = _nobody) -> list[FieldError]:
    """Check a manifest whose shape is valid. `at` is told the place of each schema before it is checked."""
    document = manifest.model_dump(mode="json", by_alias=True)
    if depth_of(document) > DEPTH_LIMIT or len(json.dumps(document)) > MANIFEST_LIMIT:
        return find_problems(document)
    return [problem for rule in _RULES for problem in rule(manifest)] + _schemas_of(document, at)


def _pointer(parts: Iterable[str | int]) -> str:
    # Pydantic marks an error in a key of an object with a part of its own.
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts if part != "[key]")


def _words(error: Any) -> str:
    name = error["loc"][-1] if error["loc"] else "the manifest"
    match error["type"]:
        case "extra_forbidden":
            return f"there is no field {name!r} here"
        case "missing":
            return f"{name!r} is missing"
        case "string_pattern_mismatch":
            return f"{str(error['input'])[:100]!r} does not match {error['ctx']['pattern']}"
        case "literal_error":
            return f"{str(error['input'])[:100]!r} is not one of {error['ctx']['expected']}"
    return str(error["msg"])


def _schemas_of(document: Any, at: At = _nobody) -> list[FieldError]:
    """Problems of the schemas in it, as far as they are where they belong."""
    if not isinstance(document, dict):
        return []
    places = [("/inputs", document.get("inputs"))]
    operations = document.get("operations")
    for number, operation in enumerate(operations if isinstance(operations, list) else ()):
        if isinstance(operation, dict):
            places.append((f"/operations/{number}/input_schema", operation.get("input_schema")))
    found: list[FieldError] = []
    tally = SchemaTally()
    for pointer, schema in places:
        if isinstance(schema, dict):
            at(pointer)
            found += find_schema_problems(schema, pointer, tally)
    return found


def _repeated(what: str, pointers: dict[str, str], names: list[str]) -> Iterator[FieldError]:
    twice = {name for name, count in Counter(names).items() if count > 1}
    for pointer, name in pointers.items():
        if name in twice:
            yield FieldError(pointer=pointer, detail=f"{what} {name!r} is there twice")


def _names_differ(manifest: Manifest) -> Iterator[FieldError]:
    lists: dict[str, tuple[str, str, list[str]]] = {
        "components": ("component", "key", [c.key for c in manifest.components]),
        "modes": ("mode", "key", [m.key for m in manifest.modes]),
        "ports": ("port", "name", [p.name for p in manifest.ports]),
        "artifacts": ("artifact", "name", [a.name for a in manifest.artifacts]),
        "secrets": ("secret", "name", [s.name for s in manifest.secrets]),
    }
    for field, (what, part, names) in lists.items():
        yield from _repeated(what, {f"/{field}/{n}/{part}": name for n, name in enumerate(names)}, names)
    kinds = [f"{o.kind}:{o.component}" if o.component else o.kind for o in manifest.operations]
    yield from _repeated("operation", {f"/operations/{n}/kind": kind for n, kind in enumerate(kinds)}, kinds)


def _scopes_work(manifest: Manifest) -> Iterator[FieldError]:
    """Refuse what the platform does not do yet: an app that relied on it would never be deployed that way."""
    for number, scope in enumerate(manifest.scopes):
        if scope != "project":
            detail = f"the scope {scope!r} does not work yet: an instance belongs to a project; leave out scopes"
            yield FieldError(pointer=f"/scopes/{number}", detail=detail)


def _one_is_primary(manifest: Manifest) -> Iterator[FieldError]:
    primary = [n for n, component in enumerate(manifest.components) if component.primary]
    if not primary:
        yield FieldError(pointer="/components", detail="exactly one component must be primary; none is")
    for number in primary[1:]:
        yield FieldError(pointer=f"/components/{number}/primary", detail="exactly one component must be primary")
    for number in primary[:1]:
        component = manifest.components[number]
        if (component.min, component.max) != (1, 1):
            detail = "the primary component has exactly one member: min 1, max 1"
            yield FieldError(pointer=f"/components/{number}", detail=detail)


def _components_fit(manifest: Manifest) -> Iterator[FieldError]:
    keys = {component.key for component in manifest.components}
    for number, component in enumerate(manifest.components):
        here = f"/components/{number}"
        if component.min > component.max:
            yield FieldError(pointer=f"{here}/min", detail=f"min {component.min} is more than max {component.max}")
        for field in ("may_share_machine_with", "must_share_machine_with"):
            for place, key in enumerate(getattr(component, field)):
                if key not in keys:
                    yield FieldError(pointer=f"{here}/{field}/{place}", detail=_unknown("component", key, keys))
        for place, key in enumerate(component.must_share_machine_with):
            if key in keys and key not in component.may_share_machine_with:
                detail = f"{component.key} must share a machine with {key}, so may_share_machine_with has to name it"
                yield FieldError(pointer=f"{here}/must_share_machine_with/{place}", detail=detail)


def _operations_fit(manifest: Manifest) -> Iterator[FieldError]:
    keys = {component.key for component in manifest.components}
    kinds = {operation.kind for operation in manifest.operations}
    for kind in NEEDED_KINDS:
        if kind not in kinds:
            yield FieldError(pointer="/operations", detail=f"the kind {kind.value!r} is missing: every app has it")
    for number, operation in enumerate(manifest.operations):
        pointer = f"/operations/{number}/component"
        if operation.component is not None and operation.component not in keys:
            yield FieldError(pointer=pointer, detail=_unknown("component", operation.component, keys))
        if operation.component is not None and operation.kind in INSTANCE_KINDS:
            detail = f"{operation.kind!r} is about the whole instance: it names no component"
            yield FieldError(pointer=pointer, detail=detail)


def _modes_fit(manifest: Manifest) -> Iterator[FieldError]:
    keys = {component.key for component in manifest.components}
    if manifest.default_mode is not None and manifest.mode(manifest.default_mode) is None:
        detail = _unknown("mode", manifest.default_mode, {mode.key for mode in manifest.modes})
        yield FieldError(pointer="/default_mode", detail=detail)
    for number, mode in enumerate(manifest.modes):
        here = f"/modes/{number}"
        for place, action in enumerate(mode.actions):
            if action not in manifest.kinds:
                detail = _unknown("operation", action, manifest.kinds)
                yield FieldError(pointer=f"{here}/actions/{place}", detail=detail)
        for place, limit in enumerate(mode.limits):
            pointer = f"{here}/limits/{place}"
            if limit.component not in keys:
                yield FieldError(pointer=f"{pointer}/component", detail=_unknown("component", limit.component, keys))
            elif limit.min > limit.max:
                yield FieldError(pointer=f"{pointer}/min", detail=f"min {limit.min} is more than max {limit.max}")


def _ports_fit(manifest: Manifest) -> Iterator[FieldError]:
    keys = {component.key for component in manifest.components}
    taken: dict[tuple[str, int, str], str] = {}
    for number, port in enumerate(manifest.ports):
        here = f"/ports/{number}"
        if port.component not in keys:
            yield FieldError(pointer=f"{here}/component", detail=_unknown("component", port.component, keys))
        for place, key in enumerate(port.clients):
            if key not in keys:
                yield FieldError(pointer=f"{here}/clients/{place}", detail=_unknown("component", key, keys))
        if port.number_input is not None:
            yield from _number_input_fits(manifest, port.number_input, f"{here}/number_input")
        place_taken = (port.component, port.number, port.protocol)
        if place_taken in taken:
            detail = f"{port.component} listens on {port.number}/{port.protocol} already: {taken[place_taken]}"
            yield FieldError(pointer=f"{here}/number", detail=detail)
        taken.setdefault(place_taken, port.name)


def _readers_differ(manifest: Manifest) -> Iterator[FieldError]:
    for number, secret in enumerate(manifest.secrets):
        roles: list[str] = [*secret.readable_by]
        pointers = {f"/secrets/{number}/readable_by/{place}": role for place, role in enumerate(roles)}
        yield from _repeated("role", pointers, roles)


def _number_input_fits(manifest: Manifest, key: str, pointer: str) -> Iterator[FieldError]:
    declared = manifest.inputs.get("properties", {})
    inputs = declared if isinstance(declared, dict) else {}
    if key not in inputs:
        yield FieldError(pointer=pointer, detail=_unknown("input", key, set(inputs)))
        return
    schema = inputs[key] if isinstance(inputs[key], dict) else {}
    least, most = schema.get("minimum"), schema.get("maximum")
    bounded = isinstance(least, int) and isinstance(most, int) and 1 <= least <= most <= 65_535
    if schema.get("type") != "integer" or not bounded:
        detail = f"the input {key!r} must be an integer with a minimum and a maximum within 1 and 65535"
        yield FieldError(pointer=pointer, detail=detail)


def _hints_fit(manifest: Manifest) -> Iterator[FieldError]:
    inputs = manifest.inputs.get("properties", {})
    for key in manifest.input_hints:
        if not isinstance(inputs, dict) or key not in inputs:
            yield FieldError(pointer=f"/input_hints/{key}", detail=_unknown("input", key, set(inputs)))


def _unknown(what: str, name: str, known: set[str]) -> str:
    return f"there is no {what} {name!r} (there is: {', '.join(sorted(known)) or 'none'})"


_RULES: tuple[Rule, ...] = (
    _names_differ,
    _scopes_work,
    _one_is_primary,
    _components_fit,
    _operations_fit,
    _modes_fit,
    _ports_fit,
    _readers_differ,
    _hints_fit,
)
