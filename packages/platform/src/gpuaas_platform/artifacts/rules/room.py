"""How large an artifact may be, how much an app or a project may have in the registry, and what is left for others."""

from dataclasses import dataclass

from gpuaas_contract.problems import Code
from gpuaas_platform.core.errors import Refusal

GIB = 1 << 30
RETRY_SECONDS = 10


@dataclass(frozen=True, slots=True)
class RoomLimits:
    """In bytes."""

    largest: int
    of_one_owner: int
    total: int
    reserve: int
    """Space that stays free for the database and the vault where they are on the same disk."""

    @classmethod
    def from_gib(cls, largest: float, of_one_owner: float, total: float, reserve: float) -> "RoomLimits":
        return cls(*(int(size * GIB) for size in (largest, of_one_owner, total, reserve)))


@dataclass(frozen=True, slots=True)
class Registered:
    """Bytes of the files that were made known, of one owner and of all."""

    owner: str
    """As people read it."""
    used: int
    total: int


@dataclass(frozen=True, slots=True)
class Room:
    """Measured sizes, in bytes."""

    owner: str
    used: int
    total: int
    free: int | None
    """None where the registry's disk cannot be seen."""


def find_refusal(room: Room, limits: RoomLimits) -> Refusal | None:
    """Why nothing may be pushed for this owner now. What is over already says so, too."""
    if room.free is not None and room.free < limits.reserve:
        detail = (
            f"the registry takes no pushes: its disk has {gib(room.free)} free, and {gib(limits.reserve)} are kept for "
            "the platform itself; an operator makes room, or collects garbage"
        )
        return Refusal(Code.UNAVAILABLE, detail, retry_after=RETRY_SECONDS)
    if room.total >= limits.total:
        detail = (
            f"the registry is full: it holds {gib(room.total)} of {gib(limits.total)}; an operator collects garbage, "
            "or raises GPUAAS_REGISTRY_TOTAL_GIB"
        )
        return Refusal(Code.UNAVAILABLE, detail, retry_after=RETRY_SECONDS)
    if room.used >= limits.of_one_owner:
        detail = (
            f"{room.owner} has {gib(room.used)} in the registry, and may have {gib(limits.of_one_owner)}: delete "
            "artifacts; their bytes count until an operator collects garbage"
        )
        return Refusal(Code.QUOTA_EXCEEDED, detail, context={"used": room.used, "limit": limits.of_one_owner})
    return None


def too_large(size: int, limits: RoomLimits) -> Refusal | None:
    if size <= limits.largest:
        return None
    detail = f"the file has {gib(size)}; an artifact may have {gib(limits.largest)}. It is deleted again: split it"
    return Refusal(Code.TOO_LARGE, detail, context={"size": size, "limit": limits.largest})


def over_quota(room: Room, limits: RoomLimits) -> Refusal | None:
    """After a push: what is above the quota does not stay. Exactly full is fine."""
    if room.used <= limits.of_one_owner:
        return None
    detail = (
        f"with this artifact {room.owner} would have {gib(room.used)} in the registry, and may have "
        f"{gib(limits.of_one_owner)}. It is deleted again: delete others first"
    )
    return Refusal(Code.QUOTA_EXCEEDED, detail, context={"used": room.used, "limit": limits.of_one_owner})


def gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB" if size >= GIB // 100 else f"{size} bytes"
