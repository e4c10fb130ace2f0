"""How artifacts lie in an OCI registry: names of repositories, media types, and signatures in cosign's format."""

import re

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
EMPTY = "application/vnd.oci.empty.v1+json"
"""The config of a manifest that is no container image."""
EMPTY_CONTENT = b"{}"
EMPTY_DIGEST = "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
FILE = "application/octet-stream"
DIRECTORY = "application/vnd.gpuaas.directory.v1.tar"
"""A directory, pushed as one tar."""
FILE_ARTIFACT = "application/vnd.gpuaas.file.v1"
TITLE = "org.opencontainers.image.title"
"""The annotation that holds the name of the file."""

SIGNATURE = "application/vnd.dev.cosign.simplesigning.v1+json"
SIGNATURE_ANNOTATION = "dev.cosignproject.cosign/signature"
SIGNATURE_TYPE = "cosign container image signature"
SIGNATURE_CONFIG = "application/vnd.oci.image.config.v1+json"

SERVICE = "gpuaas-registry"
"""The name of the registry in its tokens."""
LARGEST_MANIFEST = 1 << 20
MEDIA_TYPE = r"^[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}$"
_REPOSITORY = re.compile(r"(apps|projects)/([a-z0-9_-]{1,64})/([a-z0-9-]{1,64})")


def repository_of(name: str, *, app_slug: str | None = None, project_id: str | None = None) -> str:
    """Where the artifacts of that name of an app or a project are."""
    owner = f"apps/{app_slug}" if app_slug is not None else f"projects/{project_id}"
    return f"{owner}/{name}"


def owner_of(repository: str) -> tuple[str | None, str | None] | None:
    """The app or the project that a repository belongs to; None where it is neither's."""
    found = _REPOSITORY.fullmatch(repository)
    if found is None:
        return None
    return (found[2], None) if found[1] == "apps" else (None, found[2])


def signature_tag(digest: str) -> str:
    """Where cosign keeps the signatures of a manifest."""
    return f"{digest.replace(':', '-')}.sig"
