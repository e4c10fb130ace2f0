"""Bounds of what an agent may say of its host. One that says more is wrong, or not ours: nothing of it is stored."""

import json
from collections.abc import Iterator, Sequence

from pydantic import ValidationError

from gpuaas_contract.agent_link import Hello

MOST_CPUS = 65_536
MOST_MEMORY_MIB = 1 << 28
MOST_DISK_GIB = 1 << 22
MOST_GPUS = 256
MOST_IMAGES = 1_000
MOST_MACHINES = 10_000
MOST_CHARACTERS = 255
MOST_CAVEATS = 20
MOST_WORDS = 1_000
_KEEP = "the node stays as it was"


def refuse_hello(hello: Hello) -> str:
    """Say what is beyond its bounds and what to do about it; empty where nothing is."""
    for complaint in _complaints(hello):
        return f"the agent's inventory is refused, {_KEEP}: {complaint}; correct the agent or its settings"
    return ""


def refuse_text(text: str, error: ValidationError) -> str:
    """The same for a hello that cannot be read at all; empty for any other message."""
    try:
        message = json.loads(text)
    except ValueError:
        return ""
    if not isinstance(message, dict) or message.get("type") != "hello":
        return ""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"][1:])
    complaint = _shown(f"{where}: {first['msg']}")
    return f"the agent's inventory is refused, {_KEEP}: {complaint}; correct the agent or its settings"


def _complaints(hello: Hello) -> Iterator[str]:
    inventory = hello.inventory
    capacity = inventory.capacity
    yield from _number("cpus", capacity.cpus, MOST_CPUS)
    yield from _number("memory_mib", capacity.memory_mib, MOST_MEMORY_MIB)
    yield from _number("disk_gib", capacity.disk_gib, MOST_DISK_GIB)
    yield from _number("gpus", capacity.gpus, MOST_GPUS)
    yield from _list("gpu_devices", inventory.gpu_devices, MOST_GPUS)
    yield from _list("images", inventory.images, MOST_IMAGES)
    yield from _list("offers", inventory.offers, 10)
    yield from _list("caveats", inventory.caveats, MOST_CAVEATS, MOST_WORDS)
    yield from _list("slices", [report.allocation_id for report in hello.slices or []], MOST_MACHINES)
    yield from _list("volume_ids", hello.volume_ids or [], MOST_MACHINES)
    yield from _text("virtualisation", inventory.virtualisation)
    yield from _text("default_image", inventory.default_image or "")
    yield from _text("address", inventory.address or "")
    yield from _text("agent_version", hello.agent_version)


def _number(name: str, value: int, most: int) -> Iterator[str]:
    if not 0 <= value <= most:
        # Not with `str`: that takes long for a number of a million digits, or refuses.
        yield f"{name} is not from 0 to {most}"


def _list(name: str, values: Sequence[str], most: int, longest: int = MOST_CHARACTERS) -> Iterator[str]:
    if len(values) > most:
        yield f"{name} has {len(values)} entries, more than {most}"
    for value in values:
        yield from _text(f"an entry of {name}", value, longest)


def _text(name: str, value: str, longest: int = MOST_CHARACTERS) -> Iterator[str]:
    if len(value) > longest:
        yield f"{name} has {len(value)} characters, more than {longest}"
    elif not value.isprintable():
        yield f"{name} has characters that cannot be shown: {_shown(value)}"


def _shown(text: str) -> str:
    return ascii(text)[1:-1][:200]
