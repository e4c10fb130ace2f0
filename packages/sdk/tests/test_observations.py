"""Three values that never pass for two."""

import itertools
from collections.abc import Awaitable

import pytest

from gpuaas_sdk import CommandResult, MachineUnreachableError
from gpuaas_sdk.observations import Answer, Observation, all_of, any_of, no, observe, unknown, yes

ALL = (yes("y"), no("n"), unknown("u"))


async def _answers(result: CommandResult | Exception) -> CommandResult:
    if isinstance(result, Exception):
        raise result
    return result


@pytest.mark.parametrize("value", [*ALL, *Answer])
def test_it_is_no_boolean(value: object) -> None:
    with pytest.raises(TypeError, match="three values"):
        bool(value)
    with pytest.raises(TypeError, match="three values"):
        _ = value and True


def test_exactly_one_of_the_three_holds() -> None:
    for observation in ALL:
        assert [observation.is_yes, observation.is_no, observation.is_unknown].count(True) == 1


@pytest.mark.parametrize("count", [1, 2, 3])
def test_all_and_any_are_what_a_table_says(count: int) -> None:
    for combination in itertools.product(ALL, repeat=count):
        answers = {o.answer for o in combination}
        expected_all = (
            Answer.NO if Answer.NO in answers else Answer.UNKNOWN if Answer.UNKNOWN in answers else Answer.YES
        )
        expected_any = (
            Answer.YES if Answer.YES in answers else Answer.UNKNOWN if Answer.UNKNOWN in answers else Answer.NO
        )
        assert all_of(combination).answer is expected_all
        assert any_of(combination).answer is expected_any


def test_the_words_of_the_deciding_one_are_kept() -> None:
    assert all_of([yes("a"), no("b"), unknown("c")]).evidence == "b"
    assert all_of([yes("a"), unknown("c")]).evidence == "c"
    assert all_of([yes("a"), yes("b")]).evidence == "a; b"


def test_nothing_asked() -> None:
    assert all_of([]).is_yes
    assert any_of([]).is_no


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (CommandResult(0, "active", ""), Answer.YES),
        (CommandResult(1, "", "inactive"), Answer.NO),
        (CommandResult(127, "", "command not found"), Answer.UNKNOWN),
        (CommandResult(255, "", ""), Answer.UNKNOWN),
        (MachineUnreachableError("no route"), Answer.UNKNOWN),
        (TimeoutError(), Answer.UNKNOWN),
    ],
)
async def test_a_command_answers(result: CommandResult | Exception, expected: Answer) -> None:
    reading: Awaitable[CommandResult] = _answers(result)
    seen: Observation = await observe(reading)
    assert seen.answer is expected
    assert seen.is_yes or seen.evidence, "a no and an unknown say why"


async def test_a_bug_is_not_an_observation() -> None:
    with pytest.raises(ZeroDivisionError):
        await observe(_answers(ZeroDivisionError()))
