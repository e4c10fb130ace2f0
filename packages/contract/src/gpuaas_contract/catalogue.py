"""The catalogue: apps and their published versions."""

from pydantic import AwareDatetime

from gpuaas_contract.base import OwnedResource, Page, Request, Resource
from gpuaas_contract.manifest import Manifest


class AppVersionPublish(Request):
    manifest: Manifest


class AppVersion(OwnedResource):
    app_slug: str
    version: str
    manifest: Manifest


class App(Resource):
    slug: str
    title: str
    description: str
    latest_version: str
    published_at: AwareDatetime


class AppPage(Page):
    items: list[App]
