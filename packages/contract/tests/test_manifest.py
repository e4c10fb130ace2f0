"""The app manifest refuses what does not hang together, all of it at once and by its place."""

import json
import time
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gpuaas_contract.json_schemas import find_schema_problems, find_value_problems
from gpuaas_contract.manifest import Manifest, manifest_schema
from gpuaas_contract.manifest_rules import find_problems

GOOD: dict[str, Any] = {
    "schema": "gpuaas.app/v1",
    "slug": "echo",
    "title": "Echo",
    "icon": "bell",
    "version": "1.2.3",
    "runtime": {"name": "echo", "version": "7"},
    "components": [
        {"key": "head", "title": "Head", "primary": True, "may_share_machine_with": ["tail"]},
        {"key": "tail", "title": "Tail", "max": 3, "ui": {"label": "T", "order": 2, "help": "Where it ends."}},
    ],
    "modes": [
        {"key": "one", "title": "One", "actions": ["decommission"], "limits": [{"component": "tail", "max": 0}]},
        {"key": "many", "title": "Many", "ui": {"order": 1}},
    ],
    "ports": [{"name": "voice", "component": "head", "number": 7, "clients": ["tail"]}],
    "inputs": {
        "type": "object",
        "properties": {"greeting": {"type": "string", "pattern": "^[a-z]+$", "default": "hello"}},
    },
    "input_hints": {"greeting": {"label": "Greeting", "order": 1}},
    "operations": [
        {"kind": "deploy", "title": "Deploy"},
        {"kind": "drain", "title": "Drain a tail", "component": "tail"},
        {"kind": "drain", "title": "Drain the head", "component": "head"},
        {"kind": "decommission", "title": "End", "ui": {"confirm": True, "confirm_text": "All echoes end."}},
    ],
}
DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "app-manifest.schema.json"
CATASTROPHIC = "^(([a-z])+.)+[A-Z]([a-z])+$"
"""With a backtracking engine, some thirty letters keep it busy for hours."""


def test_a_good_one() -> None:
    assert find_problems(GOOD) == []
    manifest = Manifest.model_validate(GOOD)
    assert manifest.primary.key == "head"
    assert manifest.component("tail") is not None
    assert manifest.operation("dance") is None
    # The kind alone does not name it: each component has its own.
    titles = [manifest.operation("drain", component).title for component in ("head", "tail")]  # type: ignore[union-attr]
    assert titles == ["Drain the head", "Drain a tail"]
    # By its own words on the wire, and back.
    assert Manifest.model_validate(manifest.model_dump(mode="json", by_alias=True)) == manifest


def _component(**changes: Any) -> dict[str, Any]:
    return {"components": [GOOD["components"][0], {**GOOD["components"][1], **changes}]}


def _operation(**fields: Any) -> dict[str, Any]:
    return {"operations": [*GOOD["operations"], {"title": "More", **fields}]}


def _port_of(input: str) -> dict[str, Any]:
    """A port whose number an input chooses."""
    inputs = {
        "good": {"type": "integer", "minimum": 1024, "maximum": 65535},
        "wide": {"type": "integer", "minimum": 1, "maximum": 65536},
        "word": {"type": "string"},
    }
    port = {"name": "p", "component": "head", "number": 1, "number_input": input}
    return {"ports": [port], "inputs": {"type": "object", "properties": inputs}, "input_hints": {}}


def test_an_input_may_choose_the_number_of_a_port() -> None:
    assert find_problems({**GOOD, **_port_of("good")}) == []


@pytest.mark.parametrize(
    ("change", "pointer", "complaint"),
    [
        ({"slug": "Not A Name"}, "/slug", "does not match"),
        ({"version": "1.2"}, "/version", "does not match"),
        ({"colour": "red"}, "/colour", "there is no field 'colour'"),
        ({"schema": "gpuaas.app/v9"}, "/schema", "gpuaas.app/v1"),
        ({"icon": "data:text/html;base64,PGI+"}, "/icon", "does not match"),
        ({"icon": "data:image/png;base64," + "A" * 50_000}, "/icon", "at most"),
        ({"scopes": ["tenant"]}, "/scopes/0", "does not work yet"),
        ({"scopes": ["project", "tenant"]}, "/scopes/1", "an instance belongs to a project"),
        ({"scopes": []}, "/scopes", "at least 1"),
        ({"scopes": "project"}, "/scopes", "valid list"),
        ({"scopes": ["galaxy"]}, "/scopes/0", "'project'"),
        ({"scopes": ["project", "project", "project"]}, "/scopes", "at most 2"),
        ({"components": []}, "/components", "at least 1"),
        ({"components": [{"key": "tail", "title": "A"}]}, "/components", "exactly one component must be primary"),
        (_component(primary=True, max=1), "/components/1/primary", "exactly one"),
        (_component(key="head"), "/components/1/key", "there twice"),
        (_component(min=4), "/components/1/min", "more than max"),
        (_component(may_share_machine_with=["nose"]), "/components/1/may_share_machine_with/0", "no component 'nose'"),
        (_component(must_share_machine_with=["head"]), "/components/1/must_share_machine_with/0", "has to name it"),
        ({"operations": GOOD["operations"][:1]}, "/operations", "'decommission' is missing"),
        (_operation(kind="add", component="x"), "/operations/4/component", "no component 'x'"),
        (_operation(kind="drain", component="tail"), "/operations/4/kind", "'drain:tail' is there twice"),
        (_operation(kind="stop", component="tail"), "/operations/4/component", "about the whole instance"),
        (_operation(kind="Fly!"), "/operations/4/kind", "does not match"),
        ({"modes": [{"key": "m", "title": "M", "actions": ["fly"]}]}, "/modes/0/actions/0", "no operation 'fly'"),
        ({"default_mode": "nowhere"}, "/default_mode", "no mode 'nowhere'"),
        ({"default_mode": "No Key!"}, "/default_mode", "does not match"),
        (
            {"modes": [{"key": "m", "title": "M", "limits": [{"component": "x", "max": 1}]}]},
            "/modes/0/limits/0/component",
            "no component 'x'",
        ),
        ({"ports": [{"name": "p", "component": "head", "number": 0}]}, "/ports/0/number", "greater than"),
        (_port_of("nose"), "/ports/0/number_input", "no input 'nose'"),
        (_port_of("word"), "/ports/0/number_input", "must be an integer with a minimum and a maximum within 1 and"),
        (_port_of("wide"), "/ports/0/number_input", "must be an integer with a minimum and a maximum within 1 and"),
        ({"ports": [{"name": "p", "component": "x", "number": 1}]}, "/ports/0/component", "no component 'x'"),
        ({"ports": [GOOD["ports"][0], {**GOOD["ports"][0], "name": "again"}]}, "/ports/1/number", "already: voice"),
        ({"input_hints": {"volume": {}}}, "/input_hints/volume", "no input 'volume'"),
        ({"inputs": {"type": "array"}}, "/inputs", "type must be object"),
        ({"inputs": {"type": "objekt"}}, "/inputs/type", "not valid"),
        (_operation(kind="say", input_schema={"type": 7}), "/operations/4/input_schema/type", "not valid"),
    ],
)
def test_bad_ones(change: dict[str, Any], pointer: str, complaint: str) -> None:
    found = [problem.detail for problem in find_problems({**GOOD, **change}) if problem.pointer == pointer]
    assert any(complaint in detail for detail in found), find_problems({**GOOD, **change})


def test_a_scope_that_does_not_work_is_not_offered_and_stays_readable() -> None:
    assert manifest_schema()["properties"]["scopes"]["items"]["enum"] == ["project"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**GOOD, "scopes": ["tenant"]}, manifest_schema())
    # A version that was published before the rule.
    assert Manifest.model_validate({**GOOD, "scopes": ["project", "tenant"]}).scopes == ["project", "tenant"]


def test_all_problems_at_once() -> None:
    wrong = {**GOOD, "modes": [{"key": "m", "title": "M", "actions": ["fly"]}], "input_hints": {"x": {}}}
    wrong["inputs"] = {"type": "object", "properties": {"a": {"pattern": "("}, "b": {"$ref": "http://elsewhere/"}}}
    pointers = [problem.pointer for problem in find_problems(wrong)]
    assert pointers == [
        "/modes/0/actions/0",
        "/input_hints/x",
        "/inputs/properties/a/pattern",
        "/inputs/properties/b/$ref",
    ]


def test_documents_that_are_meant_to_hurt() -> None:
    deep: Any = {}
    for _ in range(5_000):
        deep = {"properties": deep}
    assert "levels deep" in find_problems({**GOOD, "inputs": deep})[0].detail
    assert "bytes" in find_problems({**GOOD, "inputs": {"type": "object", "title": "x" * 300_000}})[0].detail
    large = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(5_000)}}
    assert find_schema_problems(large, "/inputs")[0].detail == "the schema has more than 65536 bytes"
    documents: list[Any] = [[], "text", None, {"operations": "x", "inputs": []}]
    for document in documents:
        assert find_problems(document)


@pytest.mark.parametrize("keyword", ["patternProperties", "unevaluatedProperties", "$dynamicRef", "$id"])
def test_keywords_without_a_bound_are_refused(keyword: str) -> None:
    values = {"patternProperties": {"^a": {}}, "unevaluatedProperties": {}, "$dynamicRef": "#x", "$id": "urn:x"}
    (problem,) = find_schema_problems({"type": "object", keyword: values[keyword]}, "")
    assert "not supported" in problem.detail


def test_patterns_take_linear_time() -> None:
    """The pattern is fine, so it may be published; and a text that is made for it costs nothing."""
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": CATASTROPHIC}}}
    assert find_schema_problems(schema, "") == []
    began = time.process_time()
    assert find_value_problems({"a": "a" * 60_000}, schema)[0].pointer == "/a"
    assert time.process_time() - began < 5
    for hostile in ("(?=a)b", r"(a)\1", "(", "a{1000000}"):
        (problem,) = find_schema_problems({"type": "object", "properties": {"a": {"pattern": hostile}}}, "")
        assert (problem.pointer, "RE2" in problem.detail) == ("/properties/a/pattern", True)


def test_a_check_has_a_budget() -> None:
    """References that multiply, that lead nowhere, and arrays under large schemas end with a sentence."""
    doubled = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(30)} | {"d30": {"type": "null"}}
    endless = {"x": {"allOf": [{"$ref": "#/$defs/x"}]}}
    for defs, start in ((doubled, "d0"), (endless, "x")):
        schema = {"type": "object", "$defs": defs, "properties": {"a": {"$ref": f"#/$defs/{start}"}}}
        assert find_schema_problems(schema, "") == []
        (problem,) = find_value_problems({"a": None}, schema)
        assert "takes too long" in problem.detail
    wide = {"type": "object", "properties": {"a": {"uniqueItems": True, "items": {"allOf": [{}] * 500}}}}
    assert find_value_problems({"a": [[n, {}] for n in range(5_000)]}, wide)
    assert find_value_problems({"a": [1, 1]}, wide)[0].detail == "the items are not all different"


def test_defaults_must_fit() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "default": "seven"}}}
    (problem,) = find_schema_problems(schema, "/inputs")
    assert problem.pointer == "/inputs/properties/n/default"


def test_the_published_schema_is_current_and_agrees() -> None:
    schema = manifest_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    assert not list(validator.iter_errors(GOOD))
    assert list(validator.iter_errors({**GOOD, "colour": "red"}))
    packaged = json.loads((resources.files("gpuaas_contract") / "app-manifest.schema.json").read_text())
    assert packaged == schema, "run make reference"
    if DOCUMENT.exists():
        assert json.loads(DOCUMENT.read_text()) == schema, "run make reference"


def _with_secret(**changes: Any) -> dict[str, Any]:
    return {**GOOD, "secrets": [{"name": "door", "kind": "password", **changes}]}


def test_nobody_reads_a_secret_unless_roles_are_named() -> None:
    assert Manifest.model_validate(_with_secret()).secrets[0].readable_by == []
    named = Manifest.model_validate(_with_secret(readable_by=["project_admin", "project_member"]))
    declared = named.secret("door")
    assert declared is not None
    assert declared.readable_by == ["project_admin", "project_member"]
    # What the controller asks for is the same, whoever may read it.
    assert declared.spec == Manifest.model_validate(_with_secret()).secrets[0].spec
    assert find_problems(_with_secret(readable_by=[])) == []


@pytest.mark.parametrize(
    ("readable_by", "pointer", "words"),
    [
        (["everybody"], "/secrets/0/readable_by/0", "'everybody' is not one of 'platform_admin', 'tenant_admin'"),
        (["app_publisher"], "/secrets/0/readable_by/0", "'app_publisher' is not one of"),
        (["project_admin\n"], "/secrets/0/readable_by/0", "is not one of"),
        ([None], "/secrets/0/readable_by/0", "'None' is not one of"),
        (["project_admin"] * 2, "/secrets/0/readable_by/1", "role 'project_admin' is there twice"),
        (["project_admin"] * 6, "/secrets/0/readable_by", "at most 5 items"),
        ("project_admin", "/secrets/0/readable_by", "list"),
        (None, "/secrets/0/readable_by", "list"),
    ],
)
def test_readers_that_make_no_sense(readable_by: object, pointer: str, words: str) -> None:
    problems = {problem.pointer: problem.detail for problem in find_problems(_with_secret(readable_by=readable_by))}
    assert words in problems[pointer]
