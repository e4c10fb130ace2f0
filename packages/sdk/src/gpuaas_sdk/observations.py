"""Observations of a machine or a daemon: yes, no, or unknown.

An observation is no boolean. `if observation:` would take "unknown" for one of the two, and that is how a
controller deletes what it merely could not see; so it raises, and the code has to say which of the three it means.
"""

from collections.abc import Awaitable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from gpuaas_sdk.machines.base import CommandResult, MachineUnreachableError

_EVIDENCE_LIMIT = 500


class Answer(StrEnum):
    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"

    def __bool__(self) -> bool:
        raise TypeError("an observation has three values: ask is_yes, is_no or is_unknown")


@dataclass(frozen=True, slots=True)
class Observation:
    """One of three answers, with the words that a person needs to believe it."""

    answer: Answer
    evidence: str = ""

    def __bool__(self) -> bool:
        raise TypeError("an observation has three values: ask is_yes, is_no or is_unknown")

    @property
    def is_yes(self) -> bool:
        return self.answer is Answer.YES

    @property
    def is_no(self) -> bool:
        return self.answer is Answer.NO

    @property
    def is_unknown(self) -> bool:
        return self.answer is Answer.UNKNOWN

    def __invert__(self) -> "Observation":
        """Of the opposite question. The opposite of unknown is unknown."""
        opposite = {Answer.YES: Answer.NO, Answer.NO: Answer.YES, Answer.UNKNOWN: Answer.UNKNOWN}
        return Observation(opposite[self.answer], self.evidence)


def yes(evidence: str = "") -> Observation:
    return Observation(Answer.YES, evidence)


def no(evidence: str = "") -> Observation:
    return Observation(Answer.NO, evidence)


def unknown(reason: str) -> Observation:
    return Observation(Answer.UNKNOWN, reason)


def all_of(observations: Iterable[Observation]) -> Observation:
    """No where one is a no; otherwise unknown where one is unknown; otherwise yes, also for none at all."""
    seen = list(observations)
    for deciding in (Answer.NO, Answer.UNKNOWN):
        for observation in seen:
            if observation.answer is deciding:
                return observation
    return yes("; ".join(o.evidence for o in seen if o.evidence))


def any_of(observations: Iterable[Observation]) -> Observation:
    """Yes where one is a yes; otherwise unknown where one is unknown; otherwise no, also for none at all."""
    return ~all_of(~o for o in observations)


async def observe(reading: Awaitable[CommandResult], *, yes_status: int = 0, no_status: int | None = 1) -> Observation:
    """Take the answer of a command from its exit status. Any other status, or a machine that does not answer
    in time, is unknown: the command may not even exist there."""
    try:
        result = await reading
    except (MachineUnreachableError, TimeoutError) as error:
        return unknown(str(error) or "no answer in time")
    said = (result.stdout.strip() or result.stderr.strip())[-_EVIDENCE_LIMIT:]
    if result.exit_status == yes_status:
        return yes(said)
    if result.exit_status == no_status:
        return no(said)
    return unknown(f"exit status {result.exit_status}: {said}")
