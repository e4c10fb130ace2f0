"""The app's own database: what is remembered first stays, also for two at once and after a restart.

On PostgreSQL: tests/http/test_app_store.py.
"""

import asyncio
from pathlib import Path

import pytest

from gpuaas_sdk import ControllerMisconfiguredError
from slurm_app.store import STATE_SETTING, URL_SETTING, Store, default_url


async def test_what_is_remembered_first_stays(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    store = Store(url)
    assert await store.account_of("prj_1", "research") == "research"
    assert await store.account_of("prj_1", "renamed") == "research"
    await store.remember_node("mem_1", "ins_1", "alc_1", "node-1")
    await store.remember_node("mem_1", "ins_1", "alc_1", "other")
    await store.remember_baseline("alc_1", "ins_1", b"before")
    store.close()
    again = Store(url)
    assert await again.node_of("mem_1") == "node-1"
    assert await again.node_of("mem_2") is None
    assert await again.baseline_of("alc_1", "ins_1") == b"before"
    assert await again.baseline_of("alc_1", "ins_2") is None
    again.close()


async def test_two_processes_agree(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    one, two = Store(url), Store(url)
    names = await asyncio.gather(
        *(store.account_of("prj_9", f"name{number}") for number in range(10) for store in (one, two))
    )
    assert len(set(names)) == 1


async def test_equal_baselines_are_kept_once_and_forgotten_with_the_last(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'b.db'}")
    for number in (1, 2):
        await store.remember_baseline(f"alc_{number}", "ins_1", b"same")
        await store.remember_node(f"mem_{number}", "ins_1", f"alc_{number}", f"node-{number}")
    await store.forget("ins_1", "alc_1", ["mem_1"])
    assert await store.baseline_of("alc_1", "ins_1") is None
    assert await store.baseline_of("alc_2", "ins_1") == b"same"
    assert (await store.node_of("mem_1"), await store.node_of("mem_2")) == (None, "node-2")
    await store.forget("ins_1", "alc_2", ["mem_2"])
    assert await store.baseline_of("alc_2", "ins_1") is None


def test_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(STATE_SETTING, str(tmp_path))
    monkeypatch.delenv(URL_SETTING, raising=False)
    assert default_url() == f"sqlite:///{tmp_path}/slurm-app.db"
    monkeypatch.setenv(URL_SETTING, "postgresql://x/y")
    assert default_url() == "postgresql://x/y"
    for name in (URL_SETTING, STATE_SETTING, "HOME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ControllerMisconfiguredError, match=URL_SETTING):
        default_url()
