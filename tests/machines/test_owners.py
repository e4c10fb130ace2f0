"""Several machines at once, a tenant's own machine beside a project's, and another image: on real slices."""

import json
import socket
import subprocess

from gpuaas_stack.stack import Stack
from tests.e2e.administrator import Platform
from tests.e2e.command_line import CommandLine
from tests.machines.conftest import ENVIRONMENT, kill, leftovers
from tests.machines.slices import SMALL, release

OTHER_IMAGE = f"{ENVIRONMENT}/other"


def reaches(cli: CommandLine, machine: str, address: str, port: int = 22) -> bool:
    """Whether sshd there answers from here, or another port; a refusal and a silence are both no."""
    probe = f"timeout 5 bash -c '</dev/tcp/{address}/{port}' 2>/dev/null && echo yes || echo no"
    return cli.on(machine, probe).strip() == "yes"


def test_a_tenants_machine_beside_several_of_a_project(cli: CommandLine, node: str) -> None:
    both = cli.json("allocation", "create", "--name", "pair", "--count", "2", *SMALL, "--wait")
    assert [(machine["name"], machine["status"]) for machine in both] == [("pair-1", "active"), ("pair-2", "active")]
    own = cli.json("allocation", "create", "--tenant", "acme", "--name", "pair-1", *SMALL, "--wait")
    assert (own["status"], own["project_id"]) == ("active", None)
    assert own["address"].rsplit(".", 1)[0] != both[0]["address"].rsplit(".", 1)[0]
    # The host certificate and the person's are of the tenant's own authority: the login proves both.
    assert cli.ssh(own["id"], "hostname").strip() == "pair-1"
    assert reaches(cli, both[0]["id"], both[1]["address"]), "machines of one owner reach each other"
    assert not reaches(cli, both[0]["id"], own["address"])
    assert not reaches(cli, own["id"], both[0]["address"])
    gateways = [machine["address"].rsplit(".", 1)[0] + ".1" for machine in (both[0], own)]
    assert reaches(cli, both[0]["id"], gateways[0], 53), "names of the own project"
    assert not reaches(cli, both[0]["id"], gateways[1], 53), "names of somebody else's machines"
    assert not reaches(cli, own["id"], gateways[0], 53)
    with socket.create_server(("", 0)) as service:
        assert not reaches(cli, own["id"], gateways[1], service.getsockname()[1]), "a service of the host"
    release(cli, *(machine["id"] for machine in (*both, own)))
    assert leftovers() == []


def test_the_image_that_was_asked_for(stack: Stack, cli: CommandLine, platform: Platform, node: str) -> None:
    unknown = cli.call("allocation", "create", "--name", "other", "--image", OTHER_IMAGE, *SMALL)
    assert unknown.returncode != 0
    assert stack.settings.image_alias in unknown.stderr
    aliases = json.loads(lxc("query", f"/1.0/images/aliases/{stack.settings.image_alias}"))
    lxc("image", "alias", "create", OTHER_IMAGE, aliases["target"])
    try:
        # What a host has is read anew with each connection of its agent.
        kill(stack, "agent")
        platform.wait_until(lambda: OTHER_IMAGE in images(platform), "the agent has told of the other image")
        made = cli.json("allocation", "create", "--name", "other", "--image", OTHER_IMAGE, *SMALL, "--wait")
        assert made["image"] == OTHER_IMAGE
        told = cli.json("allocation", "timeline", "other", "--step", "instance")
        assert OTHER_IMAGE in told[0]["message"]
        assert cli.on("other", "echo here").strip() == "here"
        release(cli, "other")
    finally:
        lxc("image", "alias", "delete", OTHER_IMAGE)


def images(platform: Platform) -> list[str]:
    (host,) = [node for node in platform.ask(lambda client: client.nodes.list().all()) if node.name == "host-one"]
    return list(host.inventory.images) if host.inventory else []


def lxc(*words: str) -> str:
    return subprocess.run(["lxc", *words], capture_output=True, text=True, check=True).stdout
