"""An environment's part of LXD: given what a daemon holds, the requests that are made of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from ipaddress import IPv4Network
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from typing import Any
from urllib.parse import urlsplit

import pytest

from gpuaas_stack.errors import StackError
from gpuaas_stack.image import HASH_PROPERTY, SliceImage, ensure_imported
from gpuaas_stack.lxd import RESUME_KEY, LxdEnvironment
from gpuaas_stack.lxd_daemon import LxdDaemon
from gpuaas_stack.settings import ENVIRONMENT_TAG

ALIAS = "/1.0/images/aliases/slice"


class Daemon:
    """Answers GET with what the test put there, and does every change unless it was told to refuse it."""

    def __init__(self) -> None:
        self.holds: dict[str, Any] = {"/1.0": {}, "/1.0/instances": [], "/1.0/networks": [], "/1.0/network-acls": []}
        self.refuses: dict[str, list[str]] = {}
        """Reasons by change, one for each time that it is asked for."""
        self.changes: list[str] = []
        self.bodies: dict[str, bytes] = {}

    def answer(self, method: str, path: str, body: bytes) -> dict[str, Any]:
        if method == "GET":
            if path not in self.holds:
                return {"type": "error", "error_code": 404, "error": "not found"}
            return {"type": "sync", "metadata": self.holds[path]}
        asked = f"{method} {path}"
        if path.endswith("/state"):
            state = json.loads(body)
            asked += f" {'force ' if state.get('force') else ''}{state['action']}"
        self.changes.append(asked)
        self.bodies[asked] = body
        if self.refuses.get(asked):
            return {"type": "error", "error_code": 400, "error": self.refuses[asked].pop(0)}
        return {"type": "sync", "metadata": {"fingerprint": "new"}}


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    made = Daemon()

    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            content = json.dumps(made.answer(self.command, urlsplit(self.path).path, body)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any  # noqa: N815 - the library's names

        def address_string(self) -> str:
            return "socket"

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingUnixStreamServer(str(tmp_path / "unix.socket"), Handler) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield made
        server.shutdown()
        serving.join()


@pytest.fixture
def lxd(tmp_path: Path) -> LxdEnvironment:
    return LxdEnvironment(tmp_path / "unix.socket", "mine", "pool", IPv4Network("10.85.0.0/16"))


def instance(name: str, status: str, environment: str = "mine", **config: str) -> dict[str, Any]:
    tags = {ENVIRONMENT_TAG: environment, **config}
    devices = {"eth0": {"type": "nic", "ipv4.address": "10.85.0.9"}}
    return {"name": name, "status": status, "config": tags, "expanded_devices": devices}


def test_a_daemon_answers_or_does_not(tmp_path: Path) -> None:
    assert LxdDaemon(tmp_path / "unix.socket", tmp_path).answers() is False


@pytest.mark.usefixtures("daemon")
def test_a_daemon_that_is_there_answers(tmp_path: Path) -> None:
    assert LxdDaemon(tmp_path / "unix.socket", tmp_path).answers() is True


def test_only_running_machines_of_the_environment_are_stopped_and_noted(daemon: Daemon, lxd: LxdEnvironment) -> None:
    daemon.holds["/1.0/instances"] = [
        instance("one", "Running"),
        instance("two", "Stopped"),
        instance("three", "Running", environment="another"),
    ]
    assert lxd.stop_instances() == ["one"]
    assert daemon.changes == ["PATCH /1.0/instances/one", "PUT /1.0/instances/one/state stop"]
    assert json.loads(daemon.bodies["PATCH /1.0/instances/one"]) == {"config": {RESUME_KEY: "true"}}


def test_a_machine_that_does_not_stop_by_itself_is_forced(daemon: Daemon, lxd: LxdEnvironment) -> None:
    daemon.holds["/1.0/instances"] = [instance("one", "Running")]
    daemon.refuses["PUT /1.0/instances/one/state stop"] = ["it takes too long"]
    lxd.stop_instances()
    assert daemon.changes[-1] == "PUT /1.0/instances/one/state force stop"


def test_one_that_cannot_be_stopped_is_said_and_keeps_no_other_from_it(daemon: Daemon, lxd: LxdEnvironment) -> None:
    daemon.holds["/1.0/instances"] = [instance("one", "Running"), instance("two", "Running")]
    daemon.refuses["PATCH /1.0/instances/one"] = ["disk full"]
    with pytest.raises(StackError, match="cannot stop the machines: disk full"):
        lxd.stop_instances()
    assert "PUT /1.0/instances/two/state stop" in daemon.changes


def test_what_was_noted_is_started_again_and_nothing_else(daemon: Daemon, lxd: LxdEnvironment) -> None:
    daemon.holds["/1.0/instances"] = [
        instance("one", "Stopped", **{RESUME_KEY: "true"}),
        instance("two", "Running", **{RESUME_KEY: "true"}),
        instance("three", "Stopped"),
    ]
    daemon.refuses["PUT /1.0/instances/one/state start"] = ["The instance is already running"]
    assert lxd.ensure_instances_resumed() == ["one", "two"]
    assert daemon.changes == [
        "PUT /1.0/instances/one/state start",
        "PATCH /1.0/instances/one",
        "PATCH /1.0/instances/two",
    ]
    assert lxd.addresses(["two"]) == {"two": "10.85.0.9"}


def test_everything_of_the_environment_is_deleted_and_what_else_lies_on_its_pool(
    daemon: Daemon, lxd: LxdEnvironment
) -> None:
    tag = {ENVIRONMENT_TAG: "mine"}
    daemon.holds |= {
        "/1.0/instances": [instance("one", "Stopped"), instance("other", "Stopped", environment="another")],
        "/1.0/networks": [{"name": "bridge", "config": tag}, {"name": "lo", "config": {}, "managed": False}],
        "/1.0/network-acls": [{"name": "rules", "config": tag}],
        "/1.0/storage-pools/pool": {"status": "Created", "used_by": ["/1.0/instances/stray", "/1.0/images/abc"]},
        "/1.0/storage-pools/pool/volumes/custom": [{"name": "data", "config": {}}],
    }
    daemon.refuses["DELETE /1.0/instances/stray"] = ["The instance is running"]
    assert lxd.delete_everything() == [
        "machine one",
        "machine stray",
        "network bridge",
        "network-acl rules",
        "volume data",
        "storage pool pool",
    ]
    assert daemon.changes == [
        "DELETE /1.0/instances/one",
        "DELETE /1.0/instances/stray",
        "PUT /1.0/instances/stray/state force stop",
        "DELETE /1.0/instances/stray",
        "DELETE /1.0/networks/bridge",
        "DELETE /1.0/network-acls/rules",
        "DELETE /1.0/storage-pools/pool/volumes/custom/data",
        "DELETE /1.0/storage-pools/pool",
    ]


def test_a_pool_is_made_once_and_a_broken_one_is_refused(daemon: Daemon, lxd: LxdEnvironment) -> None:
    lxd.ensure_pool("3GiB")
    made = json.loads(daemon.bodies["POST /1.0/storage-pools"])
    assert made == {"name": "pool", "driver": "btrfs", "config": {"size": "3GiB", ENVIRONMENT_TAG: "mine"}}
    daemon.holds["/1.0/storage-pools/pool"] = {"status": "Created"}
    lxd.ensure_pool("3GiB")
    assert daemon.changes == ["POST /1.0/storage-pools"]
    daemon.holds["/1.0/storage-pools/pool"] = {"status": "Errored"}
    with pytest.raises(StackError, match="it is Errored"):
        lxd.ensure_pool("3GiB")


@pytest.fixture
def image(tmp_path: Path) -> SliceImage:
    made = SliceImage(tmp_path / "images" / "recipe-2")
    made.directory.mkdir(parents=True)
    made.metadata.write_bytes(b"the metadata")
    made.rootfs.write_bytes(b"the root file system" * 100_000)
    return made


def test_an_image_is_sent_in_both_parts_and_takes_the_place_of_the_one_before(
    daemon: Daemon, tmp_path: Path, image: SliceImage
) -> None:
    daemon.holds |= {ALIAS: {"target": "old"}, "/1.0/images/old": {"properties": {HASH_PROPERTY: "recipe-1"}}}
    assert ensure_imported(tmp_path / "unix.socket", image, "slice") is True
    assert daemon.changes == ["POST /1.0/images", f"PUT {ALIAS}", "DELETE /1.0/images/old"]
    sent = daemon.bodies["POST /1.0/images"]
    assert b'name="metadata"; filename="metadata.tar.gz"' in sent
    assert b'name="rootfs"; filename="rootfs.squashfs"' in sent
    assert b"the metadata" in sent
    assert image.rootfs.read_bytes() in sent
    assert json.loads(daemon.bodies[f"PUT {ALIAS}"])["target"] == "new"


def test_an_image_of_the_same_recipe_is_not_sent_again(daemon: Daemon, tmp_path: Path, image: SliceImage) -> None:
    daemon.holds |= {ALIAS: {"target": "old"}, "/1.0/images/old": {"properties": {HASH_PROPERTY: "recipe-2"}}}
    assert ensure_imported(tmp_path / "unix.socket", image, "slice") is False
    assert daemon.changes == []


def test_an_lxd_that_dies_while_it_starts_is_noticed_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuaas_stack.lxd_daemon.LOG_DIR", tmp_path / "log")
    home = tmp_path / "lxd"
    home.mkdir()
    # It gives up before it looks at networks, pools or machines.
    (home / "database").write_text("not a directory")
    daemon = LxdDaemon(home / "unix.socket", tmp_path / "run")
    daemon.environments.mkdir(parents=True)
    (daemon.environments / "mine").touch()
    with pytest.raises(StackError, match=r"(?s)it ended while it was starting.*unable to open database file"):
        daemon.revive("mine")
