"""The rules of the firewall as they are written, read and compared; what the kernel makes of them is in
`test_firewall_in_force`."""

import ipaddress
import json
from pathlib import Path
from typing import Any

import pytest

from gpuaas_agent.firewall import RECORD, Bridges, Firewall, FirewallError, find_difference, normalise, render

RANGE = ipaddress.IPv4Network("10.85.0.0/16")


def lines_of(bridges: Bridges, network_range: ipaddress.IPv4Network | None = RANGE) -> list[str]:
    return [line.strip() for line in render("demo", network_range, bridges).splitlines()]


def test_the_whole_table_is_replaced_in_one_transaction() -> None:
    lines = lines_of({})
    # The first line makes sure that there is one to delete.
    assert lines[:3] == ["table inet gpuaas-demo", "delete table inet gpuaas-demo", "table inet gpuaas-demo {"]


def test_chains_come_before_those_of_lxd_and_accept_what_is_not_ours() -> None:
    hooks = [line for line in lines_of({}) if line.startswith("type filter")]
    assert hooks == [f"type filter hook {hook} priority -10; policy accept;" for hook in ("input", "forward", "output")]


def test_every_rule_that_refuses_names_the_bridges_or_the_range() -> None:
    lines = lines_of({"gpb": "10.85.2.1/24"})
    inner = lines.index("chain from_machines {"), lines.index("chain input {")
    # What is refused within this chain comes from one of the bridges already.
    assert "iifname @bridges jump from_machines" in lines
    outside = lines[: inner[0]] + lines[inner[1] :]
    refusing = [line for line in outside if line.endswith(("drop", "reject"))]
    assert len(refusing) == 9
    assert all("@bridges" in line or "@range" in line or "@subnets" in line for line in refusing)


def test_sets_follow_from_the_bridges() -> None:
    lines = lines_of({"gpb": "10.85.2.1/24", "gpa": "10.85.1.1/24", "gpc": None})
    assert lines[3:8] == [
        'set bridges { type ifname; elements = { "gpa", "gpb", "gpc" } }',
        'set same_bridge { type ifname . ifname; elements = { "gpa" . "gpa", "gpb" . "gpb", "gpc" . "gpc" } }',
        'set gateways { type ifname . ipv4_addr; elements = { "gpa" . 10.85.1.1, "gpb" . 10.85.2.1 } }',
        "set subnets { type ifname . ipv4_addr; flags interval;"
        ' elements = { "gpa" . 10.85.1.0/24, "gpb" . 10.85.2.0/24 } }',
        "set range { type ipv4_addr; flags interval; elements = { 10.85.0.0/16 } }",
    ]


def test_without_bridges_and_range_nothing_is_matched() -> None:
    assert not [line for line in lines_of({}, None) if "elements" in line]


@pytest.mark.parametrize("name", ["", 'gpa" }', "gp a", "gpa*", "sixteen-letters-", "-gpa"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(FirewallError, match="not the name of a network interface"):
        render("demo", RANGE, {name: "10.85.1.1/24"})


def listing(*items: dict[str, Any]) -> str:
    return json.dumps({"nftables": [{"metainfo": {"version": "1.0.6"}}, *items]})


def rule(chain: str, expr: object, handle: int) -> dict[str, Any]:
    return {"rule": {"family": "inet", "table": "t", "chain": chain, "handle": handle, "expr": [expr]}}


TABLE = {"table": {"family": "inet", "name": "t", "handle": 4}}
CHAIN = {"chain": {"family": "inet", "table": "t", "name": "input", "handle": 1, "prio": -10, "policy": "accept"}}
SET = {"set": {"family": "inet", "name": "bridges", "table": "t", "handle": 9, "elem": ["gpb", "gpa"]}}
RULES = (rule("input", {"drop": None}, 5), rule("input", {"accept": None}, 6))
WANTED = normalise(listing(TABLE, CHAIN, SET, *RULES))


def test_handles_and_the_order_of_elements_do_not_count() -> None:
    table = {"table": {"family": "inet", "name": "t", "handle": 77}}
    elements = {"set": {**SET["set"], "handle": 1, "elem": ["gpa", "gpb"]}}
    rules = (rule("input", {"drop": None}, 50), rule("input", {"accept": None}, 51))
    assert find_difference(WANTED, normalise(listing(table, elements, CHAIN, *rules))) == ""


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ((TABLE, CHAIN, SET, *reversed(RULES)), "the rule list of chain input was changed"),
        ((TABLE, CHAIN, SET, RULES[0]), "the rule list of chain input was changed"),
        ((TABLE, CHAIN, SET), "the rule list of chain input is missing"),
        ((TABLE, {"chain": {**CHAIN["chain"], "prio": 10}}, SET, *RULES), "chain input was changed"),
        ((TABLE, CHAIN, {"set": {**SET["set"], "elem": ["gpa"]}}, *RULES), "set bridges was changed"),
        ((TABLE, CHAIN, *RULES), "set bridges is missing"),
        (
            (TABLE, CHAIN, SET, *RULES, rule("extra", {"accept": None}, 9)),
            "the rule list of chain extra was added",
        ),
        (({"table": {**TABLE["table"], "flags": "dormant"}}, CHAIN, SET, *RULES), "table was changed"),
    ],
)
def test_every_other_difference_counts_and_is_named(found: tuple[dict[str, Any], ...], words: str) -> None:
    assert find_difference(WANTED, normalise(listing(*found))) == words


def test_a_missing_table_is_a_difference() -> None:
    assert find_difference(WANTED, None) == "the table is missing"


@pytest.mark.parametrize(
    "content",
    ["", "not json", "[]", '{"bridges": []}', '{"bridges": {"gp a": null}}', '{"bridges": {"gpa": "10.85.1.1/99"}}'],
)
def test_a_broken_record_closes_all_bridges(tmp_path: Path, content: str) -> None:
    (tmp_path / RECORD).write_text(content)
    assert Firewall("demo", RANGE, tmp_path).read_bridges() == {}


def test_a_record_is_read_and_a_missing_one_is_empty(tmp_path: Path) -> None:
    assert Firewall("demo", RANGE, tmp_path).read_bridges() == {}
    (tmp_path / RECORD).write_text('{"bridges": {"gpa": "10.85.1.1/24", "gpb": null}}')
    assert Firewall("demo", RANGE, tmp_path).read_bridges() == {"gpa": "10.85.1.1/24", "gpb": None}
