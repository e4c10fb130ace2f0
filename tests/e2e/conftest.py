"""One stack for all of these tests, with state, ports, subnet and names that no `make up` uses."""

import fcntl
import os
import shlex
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpuaas_stack import platform_services
from gpuaas_stack.packs import find_packs
from gpuaas_stack.platform_services import ADMIN_EMAIL
from gpuaas_stack.progress import Progress
from gpuaas_stack.settings import Settings
from gpuaas_stack.stack import Stack
from tests.e2e.administrator import Platform
from tests.e2e.command_line import CommandLine
from tests.e2e.isolation import IsolatedController, NetworkOfOne
from tests.e2e.recorder import Recorder
from tests.support.artifacts import signing_key

# Runs beside each other need machines, ports and addresses of their own: give each its own slot.
SLOT = int(os.environ.get("GPUAAS_E2E_SLOT", "0"))
ENVIRONMENT = f"e2e{SLOT or ''}"
FIRST_PORT = 8640 + 10 * SLOT if SLOT else 8480
APPS = Path(__file__).parents[2] / "apps"


@pytest.fixture(scope="session")
def alone() -> Iterator[None]:
    """Let a second run wait for the first: they would take each other's machines away."""
    with Path(f"/var/tmp/gpuaas-{ENVIRONMENT}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def stack(alone: None) -> Iterator[Stack]:
    """Start an empty stack, whatever an earlier run left behind, and remove it at the end."""
    settings = Settings(
        state_dir=Path(f"/var/lib/gpuaas-{ENVIRONMENT}"),
        environment=ENVIRONMENT,
        api_port=FIRST_PORT,
        postgres_port=FIRST_PORT + 1,
        openbao_port=FIRST_PORT + 2,
        openbao_cluster_port=FIRST_PORT + 3,
        registry_port=FIRST_PORT + 4,
        subnet=f"10.{100 + SLOT}.0.0/17" if SLOT else "10.84.0.0/16",
        pool_size="20GiB",
        longest_pause=1,
        app_dirs=(APPS,),
    )
    stack = Stack(settings, Progress())
    stack.reset()
    stack.up()
    yield stack
    stack.reset()


@pytest.fixture(scope="session")
def cli(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    """A newcomer's command line: an empty home directory, logged in as the administrator."""
    cli = CommandLine(tmp_path_factory.mktemp("home"))
    login = ["login", "--api-url", stack.settings.api_url, "--email", ADMIN_EMAIL, "--password-stdin"]
    cli.run(*login, stdin=stack.settings.admin_password_file.read_text())
    return cli


@pytest.fixture(scope="session")
def platform(stack: Stack) -> Iterator[Platform]:
    platform = Platform(stack.settings)
    yield platform
    platform.close()


@pytest.fixture(scope="session")
def recorder(cli: CommandLine) -> Recorder:
    """One recorder for the whole smoke suite: the readiness page covers all of it."""
    return Recorder(cli)


@pytest.fixture(scope="session")
def project(cli: CommandLine) -> str:
    cli.json("tenant", "create", "acme")
    return str(cli.json("project", "create", "research", "--tenant", "acme")["id"])


@pytest.fixture(scope="session")
def node(stack: Stack, cli: CommandLine, platform: Platform) -> str:
    """Enrol a new host as an operator does: a token, then the agent."""
    token = cli.json("node", "join-token", "host-one")["token"]
    platform_services.write_join_token(stack.settings, token)
    stack.start_agent()
    platform.wait_for_node("host-one", "ready")
    return "host-one"


@pytest.fixture(scope="session")
def machines(cli: CommandLine, project: str, node: str) -> dict[str, dict[str, object]]:
    shapes = {
        "one": ["--cpus", "2", "--memory-mib", "3072", "--gpus", "2"],
        "two": ["--cpus", "1", "--memory-mib", "2048"],
        "three": ["--cpus", "1", "--memory-mib", "1536", "--gpus", "1"],
    }
    # All three fit into the pool of these tests.
    disk = ["--disk-gib", "6"]

    def make(name: str) -> dict[str, object]:
        return dict(cli.json("allocation", "create", "--name", name, *shapes[name], *disk, "--wait"))

    with ThreadPoolExecutor(len(shapes)) as pool:
        return dict(zip(shapes, pool.map(make, shapes), strict=True))


@pytest.fixture(scope="session")
def published(stack: Stack, cli: CommandLine, project: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    (pack,) = [pack for pack in find_packs([APPS]) if pack.slug == "slurm"]
    bundle = tmp_path_factory.mktemp("bundle") / "packages.tar"
    assert stack.image is not None
    key = signing_key()
    private, public = bundle.with_name("key.pem"), bundle.with_name("key.pub")
    private.write_text(key.private)
    public.write_text(key.public)
    cli.run("trusted-key", "add", "builds", str(public), "--app", pack.slug)
    # With the login of `gpuaas`; the version that is published then finds the file in the registry.
    places = ["--output", str(bundle), "--dpkg-status", str(stack.image.dpkg_status)]
    cli.paste(shlex.join(["slurm-app", "bundle", *places, "--publish", "--key", str(private)]), timeout=600)
    cli.run("app", "publish", str(pack.manifest_path), "--artifact", f"packages={bundle}", "--sign-key", str(private))
    cli.run("entitlement", "grant", "acme", pack.slug)
    return pack.slug


@pytest.fixture(scope="session")
def network() -> Iterator[NetworkOfOne]:
    with NetworkOfOne(f"gpuaas-{ENVIRONMENT}", FIRST_PORT) as network:
        yield network


@pytest.fixture(scope="session")
def controller_account(cli: CommandLine, project: str, published: str) -> Path:
    path = Path(f"/var/tmp/gpuaas-{ENVIRONMENT}-controller.json")
    path.unlink(missing_ok=True)
    cli.run("service-account", "create", "slurm-controller", "--app", published, "--file", str(path))
    return path


@pytest.fixture
def vacated(cli: CommandLine, machines: dict[str, object], network: NetworkOfOne, controller_account: Path) -> None:
    """Decommission what a failed test left on the machines, so that it is the only one that fails."""
    left = [one["id"] for one in cli.json("instance", "list") if one["status"] != "decommissioned"]
    if left:
        with IsolatedController(network, controller_account):
            for instance in left:
                cli.run("instance", "decommission", instance, "--yes", "--wait")


@pytest.fixture
def controller(network: NetworkOfOne, controller_account: Path, vacated: None) -> Iterator[IsolatedController]:
    """Run the controller as another team would: with its own user and account, and only the API in reach."""
    with IsolatedController(network, controller_account) as controller:
        yield controller


def pytest_sessionstart(session: pytest.Session) -> None:
    if os.geteuid() != 0:
        pytest.exit("the end-to-end tests make machines, which takes root", returncode=1)
