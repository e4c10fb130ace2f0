"""The catalogue: apps, their published versions, and which tenants may have them."""

from enum import StrEnum

from pydantic import AwareDatetime

from gpuaas_contract.base import JsonObject, Message, Name, OwnedResource, Page, Request, Resource
from gpuaas_contract.manifest import Manifest, RuntimeLabel


class AppVersionStatus(StrEnum):
    PUBLISHED = "published"
    DEPRECATED = "deprecated"
    """Runs on, and is deployed only where it is asked for by its number."""
    RETIRED = "retired"
    """Runs on where it runs; nothing is deployed with it or upgraded to it."""


class AppVersionPublish(Request):
    manifest: Manifest


class AppVersionEnd(Request):
    """Deprecate or retire."""

    reason: Message = ""
    """For those who run it: why, and what to take instead."""


class AppVersion(OwnedResource):
    app_slug: str
    version: str
    status: AppVersionStatus = AppVersionStatus.PUBLISHED
    reason: str = ""
    manifest: Manifest


class AppVersionEntry(OwnedResource):
    """A version in a list: without its manifest."""

    app_slug: str
    version: str
    status: AppVersionStatus
    reason: str
    runtime: RuntimeLabel


class AppVersionPage(Page):
    items: list[AppVersionEntry]


class App(Resource):
    slug: str
    title: str
    description: str
    icon: str | None = None
    latest_version: str
    """The one that is deployed where none is named; the newest of all where none can be."""
    status: AppVersionStatus = AppVersionStatus.PUBLISHED
    """Of that version."""
    published_at: AwareDatetime


class AppPage(Page):
    items: list[App]


class EntitlementCreate(Request):
    tenant_id: str
    app_slug: Name


class Entitlement(OwnedResource):
    """A tenant may deploy the app. It ends for new deployments only: what runs stays."""

    tenant_id: str
    app_slug: str


class EntitlementPage(Page):
    items: list[Entitlement]


class ManifestSchema(Resource):
    """`GET /v1/app-manifest-schema`."""

    json_schema: JsonObject
