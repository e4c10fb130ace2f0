"""The people of a machine as the script reads them, and whom it refused as the agent reads it."""

import pytest

from gpuaas_agent.errors import PeopleRefusedError, PermanentError
from gpuaas_agent.people import read_refusals, refusal_of, wanted_people
from gpuaas_contract.agent_link import MachineAccount, MachineGroup, MachineUser, SetUsers

ANN = MachineUser(login="u-ann", uid=10_001, sudo=False, principal="grt_" + "0" * 26)


def spec(**more: object) -> SetUsers:
    return SetUsers.model_validate({"allocation_id": "alc_1", "users": [], **more})


def test_each_kind_of_entry_is_a_line() -> None:
    wanted = spec(
        users=[ANN],
        temporary=["u-ann"],
        accounts=[MachineAccount(login="u-bob", uid=10_002), MachineAccount(login="u-cal", uid=10_003, leaving=True)],
        groups=[MachineGroup(name="p-lab", gid=10_004, logins=["u-ann", "u-bob"])],
    )
    assert wanted_people(wanted, ["10.0.0.1"]).splitlines() == [
        f"user u-ann 10001 0 {ANN.principal} 0",
        "temporary u-ann",
        "account u-bob 10002",
        "leaving u-cal 10003",
        "group p-lab 10004 u-ann,u-bob",
    ]


@pytest.mark.parametrize("login", ["", "u ann", "u-ann\nuser root", "../x", "U-ann", "u-" + "a" * 40, "$(id)"])
def test_a_name_that_is_none_is_refused(login: str) -> None:
    for wanted in (
        spec(accounts=[MachineAccount(login=login, uid=10_002)]),
        spec(groups=[MachineGroup(name=login, gid=10_002, logins=[])]),
        spec(groups=[MachineGroup(name="p-lab", gid=10_002, logins=[login])]),
    ):
        with pytest.raises(PermanentError, match="is not a login name"):
            wanted_people(wanted, ["10.0.0.1"])


@pytest.mark.parametrize("number", [0, 999, 10_000, 60_000, -1])
def test_a_number_of_somebody_else_is_refused(number: int) -> None:
    with pytest.raises(PermanentError, match="is not a user id"):
        wanted_people(spec(accounts=[MachineAccount(login="u-bob", uid=number)]), ["10.0.0.1"])
    with pytest.raises(PermanentError, match="is not a user id"):
        wanted_people(spec(groups=[MachineGroup(name="p-lab", gid=number, logins=[])]), ["10.0.0.1"])


def test_whom_the_script_refused_is_named_one_by_one() -> None:
    said = "\nrefused u-ann: this machine has a user u-ann of its own\nrefused u-bob: the number 10002 belongs to x\n"
    assert read_refusals(said) == {
        "u-ann": "this machine has a user u-ann of its own",
        "u-bob": "the number 10002 belongs to x",
    }
    error = refusal_of(said, "otherwise")
    assert isinstance(error, PeopleRefusedError)
    assert str(error).startswith("u-ann: this machine has")
    # Where it names nobody, nobody can be said to be there.
    assert type(refusal_of("processes of u-ann do not end", "otherwise")) is PermanentError
    assert str(refusal_of("", "otherwise")) == "otherwise"
