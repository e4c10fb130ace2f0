"""The statements that storage reads into records, found in the source, and PostgreSQL's own description of each."""

import ast
import dataclasses
import importlib
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import psycopg
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn

import gpuaas_platform
from gpuaas_platform.core.records import Record

ROOT = Path(gpuaas_platform.__file__).parent
_READS = {"find", "fetch", "fetch_all"}


@dataclasses.dataclass(frozen=True, slots=True)
class Statement:
    where: str
    record: type[Record]
    sql: str


def record_statements() -> Iterator[Statement]:
    for path in sorted(ROOT.rglob("*.py")):
        tree = ast.parse(path.read_text())
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef)]
        for function in functions:
            if any(getattr(argument.annotation, "id", "") == "LiteralString" for argument in function.args.args):
                continue  # A part of the statement comes from its callers.
            for call in _reads_in(function):
                name = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
                module = importlib.import_module(name)
                record, sql = (_value(argument, module, function) for argument in call.args[:2])
                yield Statement(f"{name}.{function.name}", record, sql)


def _reads_in(function: ast.AsyncFunctionDef) -> Iterator[ast.Call]:
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _READS:
            owner = node.func.value
            if isinstance(owner, ast.Name) and owner.id == "tx":
                yield node


def _value(expression: ast.expr, module: ModuleType, function: ast.AsyncFunctionDef) -> Any:
    """Work out a record or a statement, which a function may have put into a variable of its own first."""
    names: dict[str, Any] = {**vars(module), **{argument.arg: [] for argument in function.args.args}}
    if isinstance(expression, ast.Name) and expression.id not in names:
        assigned = [node for node in ast.walk(function) if isinstance(node, ast.Assign)]
        expression = next(node.value for node in assigned if ast.unparse(node.targets[0]) == expression.id)
    return eval(compile(ast.Expression(expression), str(module.__file__), "eval"), names)


def missing_columns(connection: psycopg.Connection[Any], statement: Statement) -> list[str]:
    """Say which fields of the record the statement has no column for, and which may be NULL against their type."""
    columns = _describe(connection.pgconn, statement)
    hints = typing.get_type_hints(statement.record)
    found = []
    for field in dataclasses.fields(statement.record):
        if field.name not in columns:
            if field.default is dataclasses.MISSING:
                found.append(f"{statement.where}: no column for {statement.record.__name__}.{field.name}")
        elif (may_be_null := columns[field.name]) and type(None) not in typing.get_args(hints[field.name]):
            table, number = may_be_null
            query = "SELECT attnotnull OR attgenerated <> '' FROM pg_attribute WHERE attrelid = %s AND attnum = %s"
            row = connection.execute(query, (table, number)).fetchone()
            assert row is not None
            if not row[0]:
                found.append(f"{statement.record.__name__}.{field.name} may be NULL")
    return found


def _describe(connection: PGconn, statement: Statement) -> dict[str, tuple[int, int] | None]:
    """Each column of the answer, with the table's column that it is, where it is one."""
    numbers: dict[str, int] = {}
    sql = re.sub(r"%\((\w+)\)s", lambda found: f"${numbers.setdefault(found[1], len(numbers) + 1)}", statement.sql)
    prepared = connection.prepare(b"", sql.replace("%%", "%").encode())
    assert prepared.status == ExecStatus.COMMAND_OK, f"{statement.where}: {prepared.error_message.decode()}"
    answer = connection.describe_prepared(b"")
    return {
        typing.cast(bytes, answer.fname(place)).decode(): (
            (answer.ftable(place), answer.ftablecol(place)) if answer.ftable(place) else None
        )
        for place in range(answer.nfields)
    }
