"""Artifacts in a real registry: pushed, made known, verified, promoted, delivered by digest, retired, deleted."""

import base64
import hashlib
import json
import secrets
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpuaas_contract import oci
from gpuaas_contract.artifacts import ArtifactStatus
from gpuaas_contract.identity import Role
from gpuaas_contract.manifest import ArtifactSlot, Manifest
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials
from gpuaas_sdk.errors import (
    ForbiddenError,
    GpuaasError,
    InvalidRequestError,
    InvalidStateError,
    NotFoundError,
    SignatureError,
    UnavailableError,
)
from gpuaas_sdk.registry import RegistryError
from gpuaas_sdk.retry import NO_RETRY
from gpuaas_sdk.signing import payload_of
from gpuaas_stack.settings import Settings
from tests.support.artifacts import promoted, push, repository_access, signing_key
from tests.support.ports import free_port
from tests.support.processes import ApiProcess
from tests.support.services import admin_credentials
from tests.support.world import MANIFEST, World

PASSWORD = "a long enough password"


async def test_from_the_push_to_the_machine(world: World) -> None:
    key = signing_key()
    content = secrets.token_bytes(3_000_000)
    made = await push(world.admin, content, app_slug=world.app_slug, sign_key=key.private)
    assert made.status == ArtifactStatus.UPLOADED
    assert made.size == len(content)
    assert made.content_digest == f"sha256:{hashlib.sha256(content).hexdigest()}"
    assert made.repository == f"apps/{world.app_slug}/packages"
    assert made.file_name == "file.bin"
    again = await push(world.admin, content, app_slug=world.app_slug, sign_key=key.private)
    assert again.id == made.id

    allocation = await world.allocation()
    await world.deploy(head=allocation)
    (operation_id,) = await world.claimable()
    claim = await world.controller.operations.claim(operation_id, "test")
    lease: dict[str, Any] = {"allocation_id": allocation.id, "digest": made.digest}
    deliver = world.controller.operations.deliver
    with pytest.raises(InvalidStateError, match="is uploaded; only promoted"):
        await deliver(operation_id, claim.fencing_token, **lease)
    with pytest.raises(InvalidStateError, match="cannot be promoted"):
        await world.admin.artifacts.promote(made.id)
    trusted = await world.admin.trusted_keys.add("builds", key.public, app_slug=world.app_slug)
    verified = await world.admin.artifacts.verify(made.id)
    assert (verified.status, verified.trusted_key_id) == (ArtifactStatus.VERIFIED, trusted.id)
    await world.admin.artifacts.promote(made.id)

    world.node.holds = {"deliver_artifact"}
    await deliver(operation_id, claim.fencing_token, **lease)

    async def asked() -> bool:
        return any(task.spec.kind == "deliver_artifact" for task in world.node.taken)

    await world.until(asked, "the node was asked to deliver")
    headers = {"Authorization": f"Bearer {world.node.token()}"}
    async with httpx.AsyncClient(base_url=world.admin.api_url) as http:
        source = (await http.get(f"/v1/agent/artifacts/{made.content_digest}", headers=headers)).json()
        headers = {"Authorization": f"Bearer {source['token']}"}
        assert (await http.get(source["url"], headers=headers)).content == content
        part = await http.get(source["url"], headers=headers | {"Range": "bytes=2999990-"})
        assert (part.status_code, part.content) == (206, content[-10:])
        # For exactly this repository, and to read only.
        other = source["url"].replace("/packages/", "/other/")
        assert (await http.get(other, headers=headers)).status_code == 401
        uploads = source["url"].rpartition("/")[0] + "/uploads/"
        assert (await http.post(uploads, headers=headers)).status_code == 401
        assert (await http.get(source["url"])).status_code == 401

    await world.admin.artifacts.retire(made.id)
    with pytest.raises(InvalidStateError, match="is retired; only promoted"):
        await deliver(operation_id, claim.fencing_token, **lease)


async def test_a_version_names_promoted_artifacts_of_its_kind(world: World) -> None:
    slot = ArtifactSlot(name="packages", media_type="application/vnd.test.packages")
    manifest = Manifest.model_validate({**MANIFEST, "slug": world.app_slug, "version": "2.0.0"})

    async def publish(digest: str | None) -> None:
        slots = [slot.model_copy(update={"digest": digest})]
        await world.admin.app_versions.publish(manifest.model_copy(update={"artifacts": slots}))

    with pytest.raises(InvalidRequestError, match="there is none with that digest"):
        await publish("sha256:" + "0" * 64)
    uploaded = await push(world.admin, b"one", app_slug=world.app_slug)
    with pytest.raises(InvalidRequestError, match="it is uploaded"):
        await publish(uploaded.digest)
    other = await promoted(world.admin, b"two", app_slug=world.app_slug)
    with pytest.raises(InvalidRequestError, match="is application/octet-stream, not"):
        await publish(other.digest)
    foreign = await promoted(world.admin, b"3", project_id=world.project.id, media_type="application/vnd.test.packages")
    with pytest.raises(InvalidRequestError, match="there is none with that digest"):
        await publish(foreign.digest)
    right = await promoted(world.admin, b"three", app_slug=world.app_slug, media_type="application/vnd.test.packages")
    await publish(right.digest)


async def test_a_wrong_key_a_missing_and_a_foreign_signature_are_refused(world: World) -> None:
    admin, project = world.admin, world.project.id
    key, stranger = signing_key(), signing_key()
    unsigned = await push(admin, b"unsigned", project_id=project)
    with pytest.raises(SignatureError, match="it has no signature"):
        await admin.artifacts.verify(unsigned.id)
    wrong = await push(admin, b"signed by a stranger", project_id=project, sign_key=stranger.private)
    with pytest.raises(SignatureError, match="trusts no key yet"):
        await admin.artifacts.verify(wrong.id)
    trusted = await admin.trusted_keys.add("builds", key.public, project_id=project)
    with pytest.raises(SignatureError, match="a key that its owner does not trust"):
        await admin.artifacts.verify(wrong.id)
    # The right signature of another artifact, put beside this one.
    await admin.artifacts.sign(wrong.id, key.private)
    async with await repository_access(admin, unsigned.repository) as registry:
        signature = await registry.get(f"manifests/{oci.signature_tag(wrong.digest)}", headers={"Accept": oci.MANIFEST})
        put = await registry.put(
            f"manifests/{oci.signature_tag(unsigned.digest)}",
            content=signature.content,
            headers={"Content-Type": oci.MANIFEST},
        )
        assert put.status_code == 201
    with pytest.raises(SignatureError, match=f"the signature is for {wrong.digest}"):
        await admin.artifacts.verify(unsigned.id)
    # A second signature, beside the stranger's, was enough for the other.
    assert (await admin.artifacts.verify(wrong.id)).trusted_key_id == trusted.id
    await admin.trusted_keys.delete(trusted.id)
    late = await push(admin, b"late", project_id=project, sign_key=key.private)
    with pytest.raises(SignatureError, match="trusts no key yet"):
        await admin.artifacts.verify(late.id)


async def test_a_signature_by_openssl_is_accepted_and_a_changed_byte_is_not(world: World, tmp_path: Path) -> None:
    """Another implementation signs: nothing of ours but the document that cosign's format asks for."""
    admin, project = world.admin, world.project.id

    def openssl(*words: str, data: bytes | None = None) -> bytes:
        return subprocess.run(["openssl", *words], input=data, capture_output=True, check=True, cwd=tmp_path).stdout

    openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "key.pem")
    await admin.trusted_keys.add("openssl", openssl("ec", "-in", "key.pem", "-pubout").decode(), project_id=project)
    made = await push(admin, b"to be signed elsewhere", project_id=project)
    payload = payload_of(made.repository, made.digest)
    signature = openssl("dgst", "-sha256", "-sign", "key.pem", data=payload)
    for changed in (True, False):
        await _put_signature(admin, made.repository, made.digest, payload + b" " * changed, signature)
        if changed:
            with pytest.raises(SignatureError, match="or was changed since"):
                await admin.artifacts.verify(made.id)
    assert (await admin.artifacts.verify(made.id)).status == ArtifactStatus.VERIFIED


async def _put_signature(client: GpuaasClient, repository: str, digest: str, payload: bytes, signature: bytes) -> None:
    async with await repository_access(client, repository) as registry:
        layer = {
            "mediaType": oci.SIGNATURE,
            "digest": await _put_blob(registry, payload),
            "size": len(payload),
            "annotations": {oci.SIGNATURE_ANNOTATION: base64.b64encode(signature).decode()},
        }
        assert await _put_manifest(registry, [layer], oci.signature_tag(digest)) == 201


async def _put_blob(registry: httpx.AsyncClient, content: bytes) -> str:
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    started = await registry.post("blobs/uploads/")
    url = httpx.URL(registry.base_url).join(started.headers["location"]).copy_merge_params({"digest": digest})
    assert (await registry.put(url, content=content)).status_code == 201
    return digest


async def _put_manifest(registry: httpx.AsyncClient, layers: list[Any], reference: str, **fields: Any) -> int:
    await _put_blob(registry, oci.EMPTY_CONTENT)
    config = {"mediaType": oci.EMPTY, "digest": oci.EMPTY_DIGEST, "size": 2}
    document = {"schemaVersion": 2, "mediaType": oci.MANIFEST, "config": config, "layers": layers, **fields}
    content = json.dumps(document).encode()
    if reference == "digest":
        reference = f"sha256:{hashlib.sha256(content).hexdigest()}"
    answer = await registry.put(f"manifests/{reference}", content=content, headers={"Content-Type": oci.MANIFEST})
    registry.headers["x-test-digest"] = f"sha256:{hashlib.sha256(content).hexdigest()}"
    return answer.status_code


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"annotations": {oci.TITLE: "../../etc/passwd"}}, "not the name of one file"),
        ({"annotations": {oci.TITLE: "/etc/passwd"}}, "not the name of one file"),
        ({"annotations": {oci.TITLE: ".."}}, "not the name of one file"),
        ({"annotations": {oci.TITLE: "a\nb"}}, "not the name of one file"),
        ({"mediaType": "no media type"}, "is not a media type"),
        ({"size": 3}, "announces 3 bytes, and the file has 7 bytes"),
        ({"urls": ["http://elsewhere.example/file"]}, "somewhere else"),
    ],
)
async def test_hostile_manifests_are_refused(world: World, change: dict[str, Any], reason: str) -> None:
    repository = oci.repository_of("hostile", project_id=world.project.id)
    async with await repository_access(world.admin, repository) as registry:
        digest = await _put_blob(registry, b"content")
        layer = {"mediaType": "application/octet-stream", "digest": digest, "size": 7, **change}
        # What the registry itself refuses cannot be made known either.
        status = await _put_manifest(registry, [layer], "digest")
        pushed = registry.headers["x-test-digest"]
    with pytest.raises(InvalidRequestError, match=reason if status == 201 else "push it first"):
        await world.admin.artifacts.register("hostile", pushed, project_id=world.project.id)
    assert await world.admin.artifacts.list(project_id=world.project.id).all() == []


async def test_several_layers_and_other_documents_are_no_artifacts(world: World) -> None:
    project = world.project.id
    async with await repository_access(world.admin, oci.repository_of("many", project_id=project)) as registry:
        digests = [await _put_blob(registry, content) for content in (b"one", b"two")]
        layers = [{"mediaType": "application/octet-stream", "digest": digest, "size": 3} for digest in digests]
        assert await _put_manifest(registry, layers, "digest") == 201
        many = registry.headers["x-test-digest"]
    with pytest.raises(InvalidRequestError, match="it has 2 layers"):
        await world.admin.artifacts.register("many", many, project_id=project)
    with pytest.raises(InvalidRequestError, match="push it first"):
        await world.admin.artifacts.register("many", "sha256:" + "0" * 64, project_id=project)


async def test_a_byte_changed_in_the_storage_of_the_registry_is_noticed(settings: Settings, world: World) -> None:
    key, project = signing_key(), world.project.id
    await world.admin.trusted_keys.add("builds", key.public, project_id=project)
    for of_the_signature in (False, True):
        content = secrets.token_bytes(100)
        made = await push(world.admin, content, project_id=project, sign_key=key.private)
        digest = made.digest
        if of_the_signature:
            payload = payload_of(made.repository, made.digest)
            digest = f"sha256:{hashlib.sha256(payload).hexdigest()}"
        hexadecimal = digest.removeprefix("sha256:")
        blobs = settings.registry_dir / "data/docker/registry/v2/blobs/sha256"
        file = blobs / hexadecimal[:2] / hexadecimal / "data"
        whole = file.read_bytes()
        file.write_bytes(whole.replace(b"o", b"p", 1))
        with pytest.raises(GpuaasError, match=f"what the registry holds as {digest} has the digest"):
            await world.admin.artifacts.verify(made.id)
        file.write_bytes(whole)
        assert (await world.admin.artifacts.verify(made.id)).status == ArtifactStatus.VERIFIED


async def test_two_pushes_of_one_tag_are_two_artifacts(world: World) -> None:
    """A tag moves; what was made known is the manifest that it was."""
    project = world.project.id
    made = []
    async with await repository_access(world.admin, oci.repository_of("tagged", project_id=project)) as registry:
        for content in (b"first", b"other"):
            layer = {"mediaType": oci.FILE, "digest": await _put_blob(registry, content), "size": 5}
            assert await _put_manifest(registry, [layer], "latest") == 201
            made.append(registry.headers["x-test-digest"])
    found = [await world.admin.artifacts.register("tagged", digest, project_id=project) for digest in made]
    assert len({artifact.content_digest for artifact in found}) == 2


async def test_who_may_push_where(settings: Settings, world: World) -> None:
    admin = world.admin

    async def person(role: Role, **where: str) -> GpuaasClient:
        user = await admin.users.create(f"{role}-{secrets.token_hex(3)}@example.com", PASSWORD)
        await admin.memberships.create(user.id, role, **where)
        return GpuaasClient(settings.api_url, PasswordCredentials(user.email, PASSWORD), retry=NO_RETRY)

    other = await admin.projects.create(world.tenant.id, "other")
    async with (
        await person(Role.PROJECT_ADMIN, project_id=world.project.id) as owner,
        await person(Role.PROJECT_VIEWER, project_id=world.project.id) as viewer,
        await person(Role.PROJECT_ADMIN, project_id=other.id) as neighbour,
        await person(Role.APP_PUBLISHER, app_slug=world.app_slug) as publisher,
        await person(Role.APP_PUBLISHER, app_slug="another") as other_publisher,
    ):
        made = await push(owner, b"mine", project_id=world.project.id)
        for stranger in (viewer, neighbour, publisher):
            with pytest.raises(RegistryError, match="you may not"):
                await push(stranger, b"not mine", project_id=world.project.id)
        for stranger in (neighbour, publisher):
            async with await repository_access(stranger, made.repository) as registry:
                assert (await registry.get(f"manifests/{made.digest}")).status_code == 401
        async with await repository_access(viewer, made.repository) as registry:
            accept = {"Accept": oci.MANIFEST}
            assert (await registry.get(f"manifests/{made.digest}", headers=accept)).status_code == 200
        for stranger in (owner, other_publisher):
            with pytest.raises(RegistryError, match="you may not"):
                await push(stranger, b"an app's", app_slug=world.app_slug)
        await push(publisher, b"an app's", app_slug=world.app_slug)
        with pytest.raises(ForbiddenError):
            await viewer.artifacts.retire(made.id)
        with pytest.raises(NotFoundError):
            await neighbour.artifacts.get(made.id)
        assert [artifact.id for artifact in await viewer.artifacts.list().all()] == [made.id]


async def test_a_service_account_logs_in_as_docker_does(settings: Settings, world: World) -> None:
    account = await world.admin.service_accounts.create(world.project.id, "builds", role=Role.PROJECT_ADMIN)
    secret = await world.admin.service_accounts.add_secret(account.id)
    assert secret.secret is not None
    repository = oci.repository_of("model", project_id=world.project.id)
    async with httpx.AsyncClient(base_url=settings.api_url) as http:
        query = {"service": oci.SERVICE, "scope": f"repository:{repository}:pull,push"}
        url = "/v1/registry/token"
        refused = await http.get(url, params=query)
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, 'Basic realm="gpuaas"')
        assert (await http.get(url, params=query, auth=(account.id, "wrong"))).status_code == 401
        answer = (await http.get(url, params=query, auth=(account.id, secret.secret))).json()
        assert answer["token"] == answer["access_token"]
        assert _claims(answer["token"])["access"] == [
            {"type": "repository", "name": repository, "actions": ["pull", "push"]}
        ]
        query["scope"] = "repository:apps/../../etc:pull registry:catalog:* repository:projects/x/y:delete,*"
        answer = (await http.get(url, params=query, auth=(account.id, secret.secret))).json()
        assert _claims(answer["token"])["access"] == []


def _claims(token: str) -> dict[str, Any]:
    part = token.split(".")[1]
    return dict(json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))))


async def test_deleting_takes_it_out_of_the_registry(world: World) -> None:
    made = await promoted(world.admin, b"to be deleted", project_id=world.project.id)
    with pytest.raises(InvalidStateError, match="retire it first"):
        await world.admin.artifacts.delete(made.id)
    await world.admin.artifacts.retire(made.id)
    await world.admin.artifacts.delete(made.id)
    with pytest.raises(NotFoundError):
        await world.admin.artifacts.get(made.id)
    async with await repository_access(world.admin, made.repository) as registry:
        for reference in (made.digest, oci.signature_tag(made.digest)):
            answer = await registry.get(f"manifests/{reference}", headers={"Accept": oci.MANIFEST})
            assert answer.status_code == 404
    assert (await push(world.admin, b"to be deleted", project_id=world.project.id)).id != made.id


async def test_a_registry_that_is_away_is_said_with_a_time(settings: Settings) -> None:
    process = ApiProcess(settings, registry_url=f"http://127.0.0.1:{free_port()}")
    with process.serving() as url:
        async with GpuaasClient(url, PasswordCredentials(*admin_credentials(settings)), retry=NO_RETRY) as admin:
            with pytest.raises(UnavailableError, match="the registry does not answer") as caught:
                await admin.artifacts.register("one", "sha256:" + "0" * 64, app_slug="some-app")
            assert caught.value.retry_after
            assert await admin.artifacts.list(app_slug="some-app").all() == []


@pytest.mark.parametrize("kind", ["rsa", "p384", "private", "nonsense"])
async def test_keys_of_other_kinds_are_not_trusted(world: World, kind: str) -> None:
    pem = _key_of_kind(kind)
    with pytest.raises(InvalidRequestError, match=r"trusted key is|not a public key"):
        await world.admin.trusted_keys.add("one", pem, project_id=world.project.id)


def _key_of_kind(kind: str) -> str:
    words = {"rsa": ["RSA"], "p384": ["EC", "-pkeyopt", "ec_paramgen_curve:P-384"], "private": ["ed25519"]}
    if kind not in words:
        return "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"
    made = subprocess.run(["openssl", "genpkey", "-algorithm", *words[kind]], capture_output=True, check=True)
    if kind != "private":
        made = subprocess.run(["openssl", "pkey", "-pubout"], input=made.stdout, capture_output=True, check=True)
    return made.stdout.decode()
