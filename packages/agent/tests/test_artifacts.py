"""Artifacts: whole and right, or not there."""

import errno
import stat
import tarfile
from pathlib import Path

import pytest

from gpuaas_agent.api import PlatformApi
from gpuaas_agent.artifacts import ArtifactManager, PartialDownload
from gpuaas_agent.errors import PermanentError, RetryLaterError
from gpuaas_agent.identity import Identity, load_or_make_key, public_key_pem
from gpuaas_agent.lxd import Instance
from gpuaas_contract.agent_link import DeliverArtifact

from .agent_test_platform import Platform, digest_of

pytestmark = pytest.mark.filterwarnings("ignore:EdDSA is deprecated")

CONTENT = bytes(range(256)) * 20_000
DIGEST = digest_of(CONTENT)
NAME = DIGEST.replace(":", "-")


class OneSlice:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.there = True

    async def find(self, allocation_id: str) -> Instance | None:
        return Instance(allocation_id, "Running", {}, {}) if self.there else None

    def artifacts_dir(self, allocation_id: str) -> Path:
        return self._directory / allocation_id / "artifacts"


class Setup:
    def __init__(self, tmp_path: Path, platform: Platform) -> None:
        key = load_or_make_key(tmp_path)
        platform.node_key = public_key_pem(key)
        platform.artifacts[DIGEST] = CONTENT
        self.platform = platform
        self.cache = tmp_path / "cache"
        self.slices = OneSlice(tmp_path / "slices")
        api = PlatformApi(f"http://127.0.0.1:{platform.port}", Identity(platform.node_id, "n", key))
        self.api = api
        self.manager = ArtifactManager(self.cache, api, self.slices)

    async def deliver(self, *, digest: str = DIGEST, size: int = len(CONTENT)) -> str:
        spec = DeliverArtifact(allocation_id="one", digest=digest, size=size)
        return await self.manager.deliver(spec, lambda _step, _message: None)


@pytest.fixture
def setup(tmp_path: Path, platform: Platform) -> Setup:
    return Setup(tmp_path, platform)


async def test_delivered_once_and_linked(setup: Setup) -> None:
    assert await setup.deliver() == f"/opt/gpuaas/artifacts/{NAME}"
    seen = setup.slices.artifacts_dir("one") / NAME
    assert seen.read_bytes() == CONTENT
    assert stat.S_IMODE(seen.stat().st_mode) == 0o644
    assert stat.S_IMODE(seen.parent.stat().st_mode) == 0o755
    assert seen.samefile(setup.cache / NAME)
    setup.platform.artifacts.clear()
    await setup.deliver()
    assert [path.name for path in setup.cache.iterdir()] == [NAME]


async def test_goes_on_where_it_was_interrupted(setup: Setup) -> None:
    setup.cache.mkdir()
    (setup.cache / f".{NAME}.part").write_bytes(CONTENT[:1_000_000])
    await setup.deliver()
    assert setup.platform.ranges == ["bytes=1000000-"]
    assert (setup.cache / NAME).read_bytes() == CONTENT


async def test_a_spoilt_part_is_thrown_away_and_fetched_again(setup: Setup) -> None:
    setup.cache.mkdir()
    (setup.cache / f".{NAME}.part").write_bytes(b"x" * 1_000_000)
    with pytest.raises(RetryLaterError, match="has the digest"):
        await setup.deliver()
    await setup.deliver()
    assert (setup.cache / NAME).read_bytes() == CONTENT


async def test_wrong_content_is_never_shown(setup: Setup) -> None:
    setup.platform.artifacts[DIGEST] = bytes(reversed(CONTENT))
    with pytest.raises(PermanentError, match="has the digest"):
        await setup.deliver()
    setup.platform.artifacts[DIGEST] = CONTENT + b"more"
    with pytest.raises(PermanentError, match="longer than"):
        await setup.deliver()
    assert list(setup.cache.iterdir()) == []
    assert not setup.slices.artifacts_dir("one").exists()


async def test_too_short_is_tried_again(setup: Setup) -> None:
    setup.platform.artifacts[DIGEST] = CONTENT[:-5]
    with pytest.raises(RetryLaterError, match="ended after"):
        await setup.deliver()


async def test_a_machine_that_is_gone_gets_nothing(setup: Setup) -> None:
    setup.slices.there = False
    with pytest.raises(PermanentError, match="has no machine on this node"):
        await setup.deliver()
    assert not setup.slices.artifacts_dir("one").exists()


async def test_what_the_registry_lost_is_said(setup: Setup) -> None:
    setup.platform.artifacts.clear()
    with pytest.raises(PermanentError, match="the registry has no file"):
        await setup.deliver()
    assert list(setup.cache.glob("[!.]*")) == []


async def test_the_oldest_that_no_slice_has_is_forgotten(setup: Setup) -> None:
    setup.manager = ArtifactManager(setup.cache, setup.api, setup.slices, limit=len(CONTENT) + 100)
    others = {digest_of(content): content for content in (b"a" * 90, b"b" * 90)}
    setup.platform.artifacts |= others
    for digest, content in others.items():
        await setup.deliver(digest=digest, size=len(content))
    first, second = (setup.cache / digest.replace(":", "-") for digest in others)
    # The second is forgotten by its slice, the first is not.
    (setup.slices.artifacts_dir("one") / second.name).unlink()
    await setup.deliver()
    assert first.exists()
    assert not second.exists()
    assert (setup.cache / NAME).exists()


async def test_a_full_disk_is_said_and_tried_again(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_part: PartialDownload, _chunk: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(PartialDownload, "write", full)
        with pytest.raises(RetryLaterError, match=r"cannot keep .* No space left"):
            await setup.deliver()
    assert not setup.slices.artifacts_dir("one").exists()
    await setup.deliver()
    assert (setup.cache / NAME).read_bytes() == CONTENT


@pytest.mark.parametrize("digest", ["sha256:../../etc/passwd", "md5:00", "sha256:" + "A" * 64])
async def test_a_digest_is_not_a_path(setup: Setup, digest: str) -> None:
    with pytest.raises(PermanentError, match="not a sha256 digest"):
        await setup.deliver(digest=digest)


async def test_a_tree_that_leads_out_is_never_shown(setup: Setup, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "tree.tar", "w") as tar:
        link = tarfile.TarInfo("config")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc"
        tar.addfile(link)
    content = (tmp_path / "tree.tar").read_bytes()
    setup.platform.artifacts[digest_of(content)] = content
    wanted = {"allocation_id": "one", "digest": digest_of(content), "size": len(content)}
    for _ in ("downloaded", "from the cache"):
        spec = DeliverArtifact(**wanted, media_type="application/vnd.gpuaas.directory.v1.tar")
        with pytest.raises(PermanentError, match="'config' is a link out of the tree: '/etc'"):
            await setup.manager.deliver(spec, lambda _step, _message: None)
        assert not setup.slices.artifacts_dir("one").exists()
    # Who calls it a file unpacks it all the same.
    spec = DeliverArtifact(**wanted, media_type="application/octet-stream")
    with pytest.raises(PermanentError, match="'config' is a link out of the tree: '/etc'"):
        await setup.manager.deliver(spec, lambda _step, _message: None)
