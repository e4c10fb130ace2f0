"""Explain the state of an instance in one answer."""

import json
import re
from typing import TYPE_CHECKING

from gpuaas_cli import output, resolve
from gpuaas_cli.errors import member_command, next_command
from gpuaas_cli.options import DEFAULTS, Options
from gpuaas_cli.session import open_session

if TYPE_CHECKING:
    from gpuaas_contract.history import Explanation

MOST_LINES = 12
_PLACEHOLDER = re.compile(r"\b[A-Z]{3,}\b")


async def explain(instance: str, /, *, options: Options = DEFAULTS) -> None:
    """Explain what an instance is doing, what blocks it, and what to do next.

    ```
    gpuaas instance explain first
    gpuaas instance explain first -o json
    ```
    """
    async with open_session(options) as session:
        found = await resolve.instance(session, instance)
        explanation = await session.client.history.explain(found.id)
    if not output.document(explanation):
        _show(explanation)


def _show(found: "Explanation") -> None:
    operation, member = found.operation, found.member
    print(output.clean(found.summary))
    print()
    counts = ", ".join(f"{number} {status}" for status, number in found.member_counts.items())
    fields: dict[str, object] = {
        "instance": f"{found.instance.name} {found.instance.id}",
        "members": counts or "none",
        "member": f"{member.component_key} {member.id}, {member.status}" if member else "none",
        "operation": f"{operation.kind} {operation.id}, {operation.state}, attempt {operation.attempt}"
        if operation
        else "none",
        "correlation id": found.correlation_id,
    }
    if operation is not None and operation.lease is not None:
        silent = ", silent" if operation.lease.expired else ""
        fields["lease"] = f"{operation.lease.holder} until {output.text(operation.lease.expires_at)}{silent}"
    if operation is not None and operation.error is not None:
        fields["error"] = f"{operation.error.code}: {operation.error.detail}"
    if found.failed_step is not None:
        fields["failed step"] = f"{found.failed_step.title}: {found.failed_step.message}".rstrip(": ")
        fields["evidence"] = _lines(found.failed_step.evidence)
    fields["adapter says"] = _lines(found.adapter_detail) or "nothing"
    output.pairs(fields)
    if said := _conditions(found):
        output.heading("Conditions")
        for line in said:
            print(f"  {output.clean(line)}")
    if found.waiting:
        output.heading("Waiting for")
        for finding in found.waiting:
            print(
                f"  {output.clean(finding.message)}" + (f" → {output.clean(finding.action)}" if finding.action else "")
            )
    commands = _commands(found)
    _show_commands("What to do next", [each for each in commands if not _PLACEHOLDER.search(each[0])])
    _show_commands("With words of yours for those in capitals", [c for c in commands if _PLACEHOLDER.search(c[0])])
    output.note(f"\nMore: gpuaas instance events {found.instance.name}, gpuaas trace {found.correlation_id}")


def _show_commands(heading: str, commands: list[tuple[str, str]]) -> None:
    if not commands:
        return
    output.heading(heading)
    width = min(max(len(command) for command, _ in commands), 90)
    for command, title in commands:
        print(f"  {command:<{width}}  {output.clean(title)}")


def _conditions(found: "Explanation") -> list[str]:
    """Say what was reported of the instance and of the member that is shown, in their own words."""
    sources = [("", found.instance.conditions)]
    if found.member is not None:
        sources.append((f"{found.member.component_key} {found.member.id}: ", found.member.conditions))
    return [
        f"{whose}{condition.type} is {condition.status}" + (f": {condition.message}" if condition.message else "")
        for whose, conditions in sources
        for condition in conditions
    ]


def _commands(found: "Explanation") -> list[tuple[str, str]]:
    """List the allowed commands: for the operation, then the member, then the whole instance."""
    name, member, operation = found.instance.name, found.member, found.operation
    commands = [] if operation is None else [(next_command(a), a.title) for a in operation.allowed_actions]
    if member is not None:
        commands += [(member_command(a, name, member.id), a.title) for a in member.allowed_actions]
    return commands + [(next_command(a), a.title) for a in found.instance.allowed_actions]


def _lines(document: dict[str, object]) -> str:
    if not document:
        return ""
    lines = json.dumps(document, indent=2, ensure_ascii=False).splitlines()
    if len(lines) > MOST_LINES:
        lines = [*lines[:MOST_LINES], "… (-o json shows all)"]
    return "\n".join(lines)
