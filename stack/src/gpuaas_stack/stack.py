"""One stack on one machine, brought up and taken down. Each step looks first and does what is missing, so
that both directions work twice in a row and after everything was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

from gpuaas_agent.errors import AgentError
from gpuaas_agent.firewall import Firewall
from gpuaas_stack import logs, platform_services, ports, users
from gpuaas_stack.errors import StackError
from gpuaas_stack.gpus import ensure_gpus, remove_stand_ins
from gpuaas_stack.image import SliceImage, ensure_image, ensure_imported
from gpuaas_stack.lxd import LxdEnvironment
from gpuaas_stack.lxd_daemon import LOG_DIR, LxdDaemon
from gpuaas_stack.openbao import OpenBao
from gpuaas_stack.packs import Pack, find_packs
from gpuaas_stack.postgres import Postgres
from gpuaas_stack.progress import Progress
from gpuaas_stack.registry import Registry
from gpuaas_stack.settings import EMBEDDED, OFF, Settings
from gpuaas_stack.supervision import Supervision

LOGIN_SECONDS = 60
CERTIFICATE_SECONDS = 3600
# What `reset` removes of the state directory; anything else in it is not ours.
OWN_STATE = (
    "postgres",
    "openbao",
    "registry",
    "platform",
    "tls",
    "agent",
    "apps",
    "packs",
    "logs",
    "run",
    "services",
    "admin.json",
    "admin-password",
)


class Stack:
    def __init__(self, settings: Settings, progress: Progress) -> None:
        self.settings = settings
        self.progress = progress
        state = settings.state_dir
        self.postgres = Postgres(state / "postgres", settings.postgres_port)
        self.openbao = OpenBao(state / "openbao", settings.openbao_port, settings.openbao_cluster_port)
        log_limits = logs.LogLimits(
            logs.bytes_of_services(settings.log_mib), {str(self.openbao.audit_log): users.STORES}
        )
        self.supervision = Supervision(state, settings.longest_pause, log_limits)
        self.registry = Registry(
            settings.registry_dir,
            settings.registry_port,
            settings.api_url,
            reserve_gib=settings.registry_reserve_gib,
            largest_gib=settings.artifact_largest_gib,
            ca_file=settings.trusted_file,
        )
        self.lxd_daemon = LxdDaemon(settings.lxd_socket, settings.lxd_run_dir, settings.lxd_network)
        self.lxd = LxdEnvironment(
            settings.lxd_socket,
            settings.environment,
            settings.storage_pool,
            settings.subnet,
            settings.lxd_network,
        )
        self.firewall = Firewall(
            settings.environment,
            settings.subnet,
            settings.state_dir / "agent",
            platform_services.within(settings.lxd_network),
        )
        self.packs: list[Pack] = []
        self.image: SliceImage | None = None

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the lock of this stack: two people who type `make up` at once get one."""
        if os.geteuid() != 0:
            raise StackError("cannot manage services and machines without root")
        users.ensure_users()
        users.ensure_dir(self.settings.state_dir)
        with (self.settings.state_dir / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    # -- up ---------------------------------------------------------------------------------------------

    def up(self) -> None:
        with self._alone():
            self.packs = find_packs(self.settings.app_dirs)
            if self.supervision.settled() is None:
                self.supervision.ensure_stopped()
                self._check_ports()
            self.supervision.ensure_running()
            self._ensure_firewall()
            # Machines and services do not need each other until the agent starts.
            with ThreadPoolExecutor(max_workers=1) as pool:
                machines = pool.submit(self._ensure_machines)
                self.ensure_platform()
                started = machines.result()
            self.supervision.ensure_service(platform_services.lxd_service(self.settings))
            self.start_enrolled()
            self._wait_for_logins(started)

    def _ensure_firewall(self) -> None:
        """Close the environment's networks before LXD starts and brings them up; the agent keeps them so."""
        users.ensure_dir(self.settings.state_dir / "agent", "root", 0o700)
        try:
            self.firewall.ensure_as_recorded()
        except AgentError as error:
            raise StackError(f"cannot close the networks: {error}") from error

    def _check_ports(self) -> None:
        chosen = self.settings
        ports.ensure_free(chosen.api_host, chosen.api_port, "the API", "GPUAAS_API_PORT")
        if chosen.database_url is None:
            ports.ensure_free("127.0.0.1", chosen.postgres_port, "PostgreSQL", "GPUAAS_POSTGRES_PORT")
        if chosen.vault_addr is None:
            ports.ensure_free("127.0.0.1", chosen.openbao_port, "OpenBao", "GPUAAS_OPENBAO_PORT")
            ports.ensure_free("127.0.0.1", chosen.openbao_cluster_port, "OpenBao", "GPUAAS_OPENBAO_CLUSTER_PORT")

        if chosen.registry_url is None:
            ports.ensure_free("127.0.0.1", chosen.registry_port, "the registry", "GPUAAS_REGISTRY_PORT")

    def ensure_platform(self) -> None:
        self._ensure_certificate()
        database_url = self._ensure_database()
        vault_addr, token_file = self._ensure_vault()
        self._ensure_registry(vault_addr, token_file)
        with self.progress.phase("API"):
            platform_services.ensure_admin_file(self.settings)
            service = platform_services.api_service(self.settings, database_url, vault_addr, token_file)
            self.supervision.ensure_service(service)
            self.supervision.wait_ready(service.name)
            if self.settings.tls != OFF:
                platform_services.check_trust(self.settings)

    def _ensure_certificate(self) -> None:
        if self.settings.is_exposed:
            self.progress.say(
                f"[bold]Warning:[/bold] the API listens on {self.settings.api_host} without TLS: passwords and tokens "
                "can be read on the way, and browsers keep no session. Set GPUAAS_TLS=embedded, or a certificate"
            )
        if self.settings.tls != EMBEDDED:
            self.supervision.remove_service(platform_services.CERTIFICATE_KEEPER)
            if self.settings.tls != OFF:
                platform_services.check_certificate(self.settings)
            return
        with self.progress.phase("certificate") as phase:
            if platform_services.authority_of(self.settings).ensure():
                phase.note = f"by a new authority: clients trust {self.settings.trusted_file}"
            self.supervision.ensure_service(platform_services.certificate_service(self.settings))

    def keep_certificate(self) -> NoReturn:
        """Renew the API's certificate before it ends, for ever. The API takes it into use by itself."""
        while True:
            if platform_services.authority_of(self.settings).renew():
                self.progress.say("the API has a new certificate")
            time.sleep(CERTIFICATE_SECONDS)

    def _ensure_database(self) -> str:
        if self.settings.database_url is not None:
            url = self.settings.database_url.get_secret_value()
            with self.progress.phase("your PostgreSQL"):
                platform_services.check_schema(url)
            return url
        with self.progress.phase("PostgreSQL"):
            self.postgres.prepare()
            self.supervision.ensure_service(self.postgres.service())
            self.supervision.wait_ready("postgres")
            self.postgres.ensure_database()
        return self.postgres.database_url()

    def _ensure_vault(self) -> tuple[str, Path]:
        if self.settings.vault_addr and self.settings.vault_token_file:
            platform_services.check_token_file(self.settings.vault_token_file)
            return self.settings.vault_addr, self.settings.vault_token_file
        with self.progress.phase("OpenBao"):
            self._start_openbao()
            if self.openbao.lost_its_root():
                self.supervision.remove_service("openbao")
                shutil.rmtree(self.openbao.data)
                self._start_openbao()
            self.openbao.configure()
        return self.openbao.address, self.openbao.token_file

    def _ensure_registry(self, vault_addr: str, token_file: Path) -> None:
        if self.settings.registry_url is not None:
            return
        with self.progress.phase("registry"):
            if not self.registry.certificates.exists():
                self.registry.trust(platform_services.registry_certificates(vault_addr, token_file))
            self._start_registry(read_only=False)

    def _start_registry(self, *, read_only: bool) -> None:
        self.registry.prepare(read_only=read_only)
        service = self.registry.service(read_only=read_only)
        self.supervision.ensure_service(service)
        self.supervision.wait_ready(service.name)

    def collect_garbage(self) -> str:
        """Free blobs that no manifest names any more. The registry is read-only meanwhile; uploads are retried."""
        if self.settings.registry_url is not None:
            raise StackError("cannot collect the garbage of a registry that is not ours (GPUAAS_REGISTRY_URL)")
        with self._alone():
            if self.supervision.running() is None:
                raise StackError("cannot collect garbage: the stack is not up")
            self._start_registry(read_only=True)
            try:
                return self.registry.collect_garbage()
            finally:
                self._start_registry(read_only=False)

    def _start_openbao(self) -> None:
        self.openbao.prepare()
        self.supervision.ensure_service(self.openbao.service())
        self.supervision.wait_ready("openbao")

    def _ensure_machines(self) -> list[str]:
        """Return the machines that were started again."""
        # First of all, before any bridge can exist or be missing.
        self.lxd.ensure_route()
        with self.progress.phase("LXD") as phase:
            # LXD itself starts machines again, and tries for ten seconds where one has no device.
            ensure_gpus(self.settings.gpu_dir, self.settings.gpu_stand_ins)
            lost_lxcfs = self.lxd_daemon.acquire(self.settings.environment)
            self.lxd.ensure_pool(self.settings.pool_size)
            self.lxd.ensure_networks_started()
            restarted = self.lxd.restart_instances() if lost_lxcfs else []
            resumed = self.lxd.ensure_instances_resumed()
            phase.note = f"started again: {', '.join(resumed)}" if resumed else ""
        with self.progress.phase("slice image") as phase:
            self.image, built = ensure_image(self.settings.image_cache)
            ensure_imported(self.settings.lxd_socket, self.image, self.settings.image_alias)
            phase.note = "built" if built else "cached"
        return restarted + resumed

    def _wait_for_logins(self, machines: list[str]) -> None:
        """Wait for the machines that boot while the services start, so that `gpuaas ssh` works right after `up`."""
        addresses = self.lxd.addresses(machines)
        # An LXD in a network of its own has machines that nobody here can reach.
        if not addresses or self.settings.lxd_network is not None:
            return
        with self.progress.phase("machines answer") as phase:
            deadline = time.monotonic() + LOGIN_SECONDS
            silent = [name for name, address in addresses.items() if not ports.answers(address, 22, deadline)]
            phase.note = f"not yet: {', '.join(silent)}" if silent else ""

    def keep_lxd(self) -> NoReturn:
        """Start LXD again whenever it dies, for ever. Machines keep running meanwhile."""
        while True:
            if self.lxd_daemon.revive(self.settings.environment):
                self.progress.say("LXD had died and was started again")
            logs.trim_shared(LOG_DIR, logs.bytes_of_lxd(self.settings.log_mib))
            time.sleep(1)

    def start_enrolled(self) -> None:
        """Start the agent and the controllers whose credentials exist; the others wait for theirs."""
        if self.settings.join_token_file.exists():
            self.start_agent()
        for pack in self.packs:
            if self.settings.service_account_file(pack.slug).exists():
                self.start_controller(pack)

    def start_agent(self) -> None:
        service = platform_services.agent_service(self.settings)
        self.supervision.ensure_service(service)
        self.supervision.wait_ready(service.name)

    def start_controller(self, pack: Pack) -> None:
        if platform_services.belongs_to_shared_user(self.settings, pack.slug):
            # One of an earlier version would write on as the former user while its files are handed over.
            self.supervision.remove_service(f"controller-{pack.slug}")
        service = platform_services.controller_service(self.settings, pack)
        self.supervision.ensure_service(service)
        self.supervision.wait_ready(service.name)

    # -- down -------------------------------------------------------------------------------------------

    def down(self) -> None:
        with self._alone():
            self._stop_services()
            self._stop_machines()

    def _stop_services(self) -> None:
        with self.progress.phase("services stopped") as phase:
            stopped = self.supervision.stop()
            phase.note = ", ".join(stopped) or "none were running"

    def _stop_machines(self) -> None:
        with self.progress.phase("machines stopped") as phase:
            if self._lxd_holds_something():
                self.lxd_daemon.acquire(self.settings.environment)
                stopped = self.lxd.stop_instances()
                self.lxd.stop_networks()
                phase.note = f"{', '.join(stopped) or 'none were running'}; "
            phase.note += self.lxd_daemon.release(self.settings.environment)
            self._remove_traces()

    def _remove_traces(self) -> None:
        self._open_networks()
        remove_stand_ins(self.settings.gpu_dir)

    def _open_networks(self) -> None:
        """Remove route and rules, after the last bridge that they are about."""
        self.lxd.remove_route()
        try:
            self.firewall.remove()
        except AgentError as error:
            raise StackError(f"cannot remove the firewall of this environment: {error}") from error

    def _lxd_holds_something(self) -> bool:
        """True if LXD answers, or was killed while this environment used it: its machines may still run."""
        return self.lxd_daemon.answers() or self.lxd_daemon.used_by(self.settings.environment)

    # -- machines alone ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def machines_only(self) -> Iterator[str]:
        """Provide LXD, the image and a storage pool without any service; yield the pool's name."""
        with self._alone():
            self._ensure_machines()
            try:
                yield self.settings.storage_pool
            finally:
                self._delete_machines()

    # -- reset ------------------------------------------------------------------------------------------

    def losses(self) -> list[str]:
        """Describe everything that `reset` would destroy."""
        state = self.settings.state_dir
        found = [str(state / name) for name in OWN_STATE if (state / name).exists()]
        if self.lxd_daemon.answers():
            found += [f"machine {machine.name}" for machine in self.lxd.machines()]
        return [*found, f"storage pool {self.settings.storage_pool} with everything on it"]

    def reset(self) -> None:
        with self._alone():
            self._stop_services()
            with self.progress.phase("machines deleted") as phase:
                self.lxd_daemon.acquire(self.settings.environment)
                deleted = self.lxd.delete_everything()
                phase.note = f"{len(deleted)} objects; {self.lxd_daemon.release(self.settings.environment)}"
                self._remove_traces()
            with self.progress.phase("data deleted"):
                for name in OWN_STATE:
                    path = self.settings.state_dir / name
                    if path.is_dir():
                        shutil.rmtree(path)
                    else:
                        path.unlink(missing_ok=True)

    def _delete_machines(self) -> None:
        with self.progress.phase("machines deleted") as phase:
            self.lxd_daemon.acquire(self.settings.environment)
            deleted = self.lxd.delete_everything()
            phase.note = f"{len(deleted)} objects; {self.lxd_daemon.release(self.settings.environment)}"
            self._open_networks()
