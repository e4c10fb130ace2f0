"""The moments around a step at which a controller, or the API, can be lost: seen on the way between the two."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from gpuaas_conformance.looking import operation_call
from gpuaas_conformance.proxy import Exchange, Fault, FaultProxy, LoseAnswer, LoseRequest

END = "its end"
"""Instead of a step: the report that the operation has succeeded."""


class Moment(StrEnum):
    UNANNOUNCED = "before its announcement"
    ANNOUNCED = "after its announcement, before its effect"
    DONE = "after its effect, before its report"
    REPORTED = "after its report"


@dataclass(frozen=True, order=True)
class Boundary:
    kind: str
    step: str
    moment: Moment

    def __str__(self) -> str:
        return f"{self.kind}, {self.step}: {self.moment}"


@dataclass
class Boundaries:
    """Weather that notes every boundary, and asks at the first time of each whether to strike there.

    A strike is `kill` at exactly that moment: the request that marks it is lost, or is heard and its answer is lost.
    Works for any controller, since it looks only at what the controller sends."""

    proxy: FaultProxy
    kill: Callable[[Boundary], None]
    strikes: Callable[[Boundary], bool]
    passed: list[Boundary] = field(default_factory=list)
    struck: list[Boundary] = field(default_factory=list)

    async def __call__(self, exchange: Exchange) -> Fault | None:
        found = self._boundaries(exchange)
        if found is None:
            return None
        before, after = found
        if self._strikes(before):
            self.kill(before)
            return LoseRequest()
        return LoseAnswer(lambda: self.kill(after)) if self._strikes(after) else None

    def _strikes(self, boundary: Boundary) -> bool:
        if boundary in self.passed:
            return False
        self.passed.append(boundary)
        if not self.strikes(boundary):
            return False
        self.struck.append(boundary)
        return True

    def _boundaries(self, exchange: Exchange) -> tuple[Boundary, Boundary] | None:
        call = operation_call(exchange)
        if call is None or call[1] not in {"steps", "complete"}:
            return None
        (operation_id, what), report = call, exchange.json
        kind, step = self._kind(operation_id), END if what == "complete" else str(report["key"])
        # Progress within a step looks like its announcement, but comes after it: that boundary is passed already.
        begins = report.get("status") == "running"
        before, after = (Moment.UNANNOUNCED, Moment.ANNOUNCED) if begins else (Moment.DONE, Moment.REPORTED)
        return Boundary(kind, step, before), Boundary(kind, step, after)

    def _kind(self, operation_id: str) -> str:
        path = f"/v1/operations/{operation_id}/claim"
        claims = (e for e in self.proxy.exchanges if e.path == path and e.accepted)
        return str(next(claims).answer_json["operation"]["kind"])
