"""The local end of a tunnel: where it listens, and what is said where it cannot. What flows is tested on a platform."""

import errno
import socket
from itertools import pairwise
from pathlib import Path

import pytest

from gpuaas_cli.errors import CliError
from gpuaas_cli.forwarding import LocalEnd, cannot_listen
from gpuaas_cli.forwarding_ssh import ssh_words, take_port
from gpuaas_cli.main import run
from gpuaas_contract.external import ExternalMachine

HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--bind", "example.org"], "cannot listen on 'example.org': it is no IP address"),
        (["--bind", ""], "it is no IP address"),
        (["--local-port", "0"], "a port is from 1 to 65535"),
        (["--local-port", "65536"], "a port is from 1 to 65535"),
        (["--local-port", "many"], "--local-port"),
    ],
)
def test_a_local_end_that_cannot_be_is_refused_before_anybody_is_asked(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["tunnel", "first", "web", *words]) == 2
    assert complaint in capsys.readouterr().err


def test_why_a_port_cannot_be_listened_on() -> None:
    end = LocalEnd("127.0.0.1", 80)
    assert "it is taken; leave out --local-port" in str(cannot_listen(end, OSError(errno.EADDRINUSE, "")))
    assert "ports below 1024 take root" in str(cannot_listen(end, OSError(errno.EACCES, "")))
    assert "does not have that address" in str(cannot_listen(end, OSError(errno.EADDRNOTAVAIL, "")))
    assert "cannot listen on 127.0.0.1:80: " in str(cannot_listen(end, OSError(errno.ENOMEM, "")))
    assert "cannot listen on [::1]:80: odd" in str(cannot_listen(LocalEnd("::1", 80), OSError("odd")))


def test_only_the_loopback_is_nobody_elses() -> None:
    assert [LocalEnd(a, 1).is_loopback for a in ("127.0.0.1", "::1", "0.0.0.0", "::", "192.0.2.1")] == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_a_port_for_ssh_is_free_or_said_to_be_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        assert take_port(LocalEnd("127.0.0.1", 0)).port not in {0, taken}
        with pytest.raises(CliError, match=f"127.0.0.1:{taken}: it is taken"):
            take_port(LocalEnd("127.0.0.1", taken))
    assert take_port(LocalEnd("127.0.0.1", taken)).port == taken


def test_ssh_believes_the_known_host_key_only() -> None:
    external = ExternalMachine(address="192.0.2.9", port=2200, host_key=HOST_KEY, credential_id="crd_1")
    words = ssh_words("alc_1", external, 7400, LocalEnd("127.0.0.1", 8080), "gpuaas", Path("/hosts"))
    assert words[-2:] == ["--", "192.0.2.9"]
    settings = dict(value.split("=", 1) for flag, value in pairwise(words) if flag == "-o")
    assert (settings["StrictHostKeyChecking"], settings["UserKnownHostsFile"]) == ("yes", "/hosts")
    assert (settings["HostKeyAlias"], settings["GlobalKnownHostsFile"]) == ("alc_1", "/dev/null")
    flags = dict(pairwise(words))
    assert (flags["-L"], flags["-p"], flags["-l"]) == ("[127.0.0.1]:8080:localhost:7400", "2200", "gpuaas")
