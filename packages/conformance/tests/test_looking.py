"""Findings in recorded traffic, and a proxy that does what it is told."""

import asyncio
import base64
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpuaas_conformance import looking
from gpuaas_conformance.proxy import Exchange, Fault, FaultProxy, LoseAnswer, LoseRequest, Refuse
from gpuaas_conformance.rules import CHECKS, UNCHECKED, Findings, table
from gpuaas_conformance.scenarios import SCENARIOS
from gpuaas_contract.problems import Code

CONTRACT = Path(__file__).parents[3] / "docs" / "contract" / "README.md"


def exchange(
    number: int, path: str, body: dict[str, Any], status: int = 200, answer: dict[str, Any] | None = None
) -> Exchange:
    return Exchange(number, 0.0, "POST", path, json.dumps(body), status, json.dumps(answer or {}))


def step(number: int, status: str, token: int = 7) -> Exchange:
    return exchange(number, "/v1/operations/op_1/steps", {"fencing_token": token, "key": "a", "status": status})


def test_a_step_has_to_be_announced_under_the_same_claim() -> None:
    good, bad = Findings(), Findings()
    looking.look_at_steps([step(1, "running"), step(2, "succeeded")], good)
    looking.look_at_steps([step(1, "running", 6), step(2, "succeeded", 7)], bad)
    assert (good.verdict("announced"), bad.verdict("announced")) == ("kept", "BROKEN")


def test_an_old_holder_may_be_refused_a_few_times_and_never_heard() -> None:
    claimed = [exchange(n, "/v1/operations/op_1/claim", {}, 200, {"fencing_token": n}) for n in (1, 2)]
    late = [exchange(9, "/v1/operations/op_1/heartbeat", {"fencing_token": 1}, 409)]
    verdicts = []
    for more in (late, late * 20, [step(9, "running", 1)]):
        findings = Findings()
        looking.look_at_leases([*claimed, *more], findings)
        verdicts.append((findings.verdict("stale-write"), findings.verdict("lease-lost")))
    assert verdicts == [("kept", "kept"), ("kept", "BROKEN"), ("BROKEN", "kept")]


LATE = "Started gpuaas-op_1-late.service - gpuaas-op_1-late (cor_1, token 6)."


@pytest.mark.parametrize(("line", "verdict"), [("", "kept"), (LATE, "BROKEN"), (LATE.replace("op_1", "op_2"), "kept")])
def test_a_machine_is_not_changed_under_an_older_token(line: str, verdict: str) -> None:
    began = "Started gpuaas-op_1-install.service - gpuaas-op_1-install (cor_1, token {})."
    log = [began.format(6), "wrote /etc/x for op_1 (cor_1, token 6)", began.format(7), "Stopped x", line]
    findings = Findings()
    looking.look_at_machine_log("one", "\n".join(log), findings)
    assert findings.verdict("stale-write") == verdict


JOURNAL = """\
100.5 one systemd[1]: Starting gpuaas-op_1-install.service - gpuaas-op_1-install (cor_1, token 6)...
100.6 one systemd[1]: Started gpuaas-op_1-install.service - gpuaas-op_1-install (cor_1, token 6).
101.5 one systemd[1]: gpuaas-op_1-install.service: Deactivated successfully.
103.0 one gpuaas[77]: wrote /etc/x/key for op_1 (cor_1, token 6)
103.5 one gpuaas[78]: reads (cor_1)
"""


@pytest.mark.parametrize(
    ("line", "outside"),
    [
        ("101.0 0 /opt/x/program", []),
        ("100.499 0 /opt/x/program", []),
        ("100.2 0 /opt/x/program", ["/opt/x/program"]),
        ("101.6 0 /opt/x/program", ["/opt/x/program"]),
        ("102.9 0 /etc/x/key", []),
        ("103.6 0 /etc/x/key", ["/etc/x/key"]),
        ("102.9 0 /opt/x/program", ["/opt/x/program"]),
        # Of a daemon's own user, and of the system.
        ("103.6 998 /opt/x/program", []),
        ("103.6 0 /etc/resolv.conf", []),
    ],
)
def test_a_file_that_changed_while_no_step_ran_is_work_outside_of_the_fence(line: str, outside: list[str]) -> None:
    assert looking.outside_the_fence(JOURNAL, f"{line}\n", {"/opt/x/program", "/etc/x/key"}) == outside


def test_a_step_that_still_runs_has_no_end() -> None:
    unended = "\n".join(JOURNAL.splitlines()[:2])
    assert looking.outside_the_fence(unended, "109.0 0 /opt/x", {"/opt/x"}) == []


def test_a_secret_is_known_as_text_and_as_bytes() -> None:
    key = b"\x00\xff" * 8
    seen = [exchange(1, "/v1/secret-deliveries/d/unwrap", {}, 200, {"value": base64.b64encode(key).decode()})]
    assert key in looking.secret_contents(seen)


def test_secrets_are_known_from_their_delivery_and_looked_for() -> None:
    values = looking.secret_values(
        [exchange(1, "/v1/secret-deliveries/d/unwrap", {}, 200, {"value": "hunter2hunter2"})]
    )
    findings = Findings()
    looking.look_for_secrets(values, {"its log": "token hunter2hunter2"}, findings)
    assert findings.broken == {"secret-kept": ["a secret can be read in its log"]}


def test_every_rule_of_the_contract_has_a_check_or_a_reason_and_the_page_names_it() -> None:
    text = CONTRACT.read_text().split("## What a controller must do")[1].split("\n## ")[0]
    rules = {int(number): words for number, words in re.findall(r"^(\d+)\. (.*?)(?=^\d+\. |\Z)", text, re.M | re.S)}
    checked = {number for check in CHECKS for number in check.rules}
    assert set(rules) == checked | set(UNCHECKED)
    for number, words in rules.items():
        keys = {check.key for check in CHECKS if number in check.rules}
        named = set(re.findall(r"`([a-z-]+)`", words.split("Checked by")[-1])) if "Checked by" in words else set()
        assert named == keys, f"rule {number} names {sorted(named)}, and is checked by {sorted(keys)}"


def test_checks_belong_to_scenarios() -> None:
    assert {check.scenario for check in CHECKS} == set(SCENARIOS)
    assert "own-account" in table(Findings().rows({"plain"}))


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{"a": 1}')
    writer.close()


@pytest.mark.parametrize(
    ("fault", "status"), [(None, 200), (Refuse(Code.UNAVAILABLE), 503), (LoseAnswer(), None), (LoseRequest(), None)]
)
async def test_the_proxy_does_what_it_is_told(fault: Fault | None, status: int | None) -> None:
    async def weather(exchange: Exchange) -> Fault | None:
        return fault

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    upstream = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with FaultProxy(upstream, weather) as proxy, httpx.AsyncClient() as http:
        try:
            answer: int | None = (await http.get(f"{proxy.url}/v1/x")).status_code
        except httpx.TransportError:
            answer = None
        reached = [seen.status for seen in proxy.exchanges]
    server.close()
    assert answer == status
    assert reached == [{503: 503, None: 200 if isinstance(fault, LoseAnswer) else None}.get(status, 200)]
