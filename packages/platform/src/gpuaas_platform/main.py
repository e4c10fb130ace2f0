"""The program `gpuaas-platform`. A command imports only what it needs: to import the whole server takes a second."""

import argparse
import asyncio
import json

from pydantic import ValidationError

from gpuaas_platform.core.schema import SchemaError, is_current, require_current
from gpuaas_platform.observability.logs import configure_logs
from gpuaas_platform.settings import DatabaseSettings, ServingSettings, Settings, VaultSettings


def main() -> None:
    parser = argparse.ArgumentParser(prog="gpuaas-platform", description="The GPUaaS control plane.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("serve", help="serve the API until stopped")
    migration = commands.add_parser("migrate", help="bring the database schema up to date; needs GPUAAS_DATABASE_URL")
    migration.add_argument("--check", action="store_true", help="change nothing; fail where something is to be done")
    commands.add_parser("openapi", help="print the OpenAPI document; needs no database and no settings")
    commands.add_parser("registry-certificates", help="print what a registry is to believe our tokens by")
    checked = commands.add_parser("check-certificate", help="say what is wrong with the certificate of GPUAAS_TLS")
    checked.add_argument("names", nargs="*", metavar="NAME", help="by which clients reach the API")
    arguments = parser.parse_args()
    if arguments.command == "openapi":
        print_openapi()
        return
    configure_logs()
    try:
        if arguments.command == "migrate":
            prepare = require_current if arguments.check else migrate
            prepare(DatabaseSettings().database_url)
        elif arguments.command == "check-certificate":
            check_certificate(ServingSettings(), arguments.names)
        elif arguments.command == "registry-certificates":
            print(asyncio.run(registry_certificates(VaultSettings())), end="")
        else:
            run_server(Settings())
    except SchemaError as error:
        raise SystemExit(str(error)) from None
    except ValidationError as error:
        wrong = "; ".join(f"GPUAAS_{'_'.join(map(str, e['loc'])).upper()}: {e['msg']}" for e in error.errors())
        raise SystemExit(f"cannot start: {wrong}") from None


def check_certificate(settings: ServingSettings, names: list[str]) -> None:
    from gpuaas_platform.core.certificates import CertificateError, CertificateFiles, load

    if settings.tls is None:
        raise SystemExit("GPUAAS_TLS names no certificate")
    try:
        for name in names or settings.names:
            load(CertificateFiles(*settings.tls), [name])
    except CertificateError as error:
        raise SystemExit(str(error)) from None


def print_openapi() -> None:
    from gpuaas_platform.api.app import declare_app

    print(json.dumps(declare_app().openapi(), indent=2, sort_keys=True))


def migrate(database_url: str) -> None:
    from gpuaas_platform import migrations

    migrations.migrate(database_url)


async def registry_certificates(settings: VaultSettings) -> str:
    from gpuaas_platform.artifacts.service.registry import certificate_bundle
    from gpuaas_platform.core.openbao import OpenBao

    openbao = OpenBao(settings.vault_addr, settings.vault_token_file)
    try:
        return await certificate_bundle(openbao)
    finally:
        await openbao.close()


def run_server(settings: Settings) -> None:
    if settings.migrate_at_start and not is_current(settings.database_url):
        migrate(settings.database_url)
    require_current(settings.database_url)
    from gpuaas_platform.core.certificates import CertificateError
    from gpuaas_platform.serving import serve

    try:
        asyncio.run(serve(settings))
    except CertificateError as error:
        raise SystemExit(str(error)) from None
