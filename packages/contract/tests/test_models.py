"""Wire models refuse or ignore unknown fields, and check names."""

import pytest
from pydantic import TypeAdapter, ValidationError

from gpuaas_contract.agent_link import DeleteSlice, TaskMessage, to_agent_adapter
from gpuaas_contract.base import Name
from gpuaas_contract.identity import Tenant, TenantCreate


def test_requests_refuse_unknown_fields_and_answers_ignore_them() -> None:
    with pytest.raises(ValidationError, match="colour"):
        TenantCreate.model_validate({"name": "acme", "colour": "red"})
    tenant = {
        "id": "ten_1",
        "name": "acme",
        "title": "Acme",
        "revision": 1,
        "created_at": "2026-01-01T00:00:00Z",
        "updated_at": "2026-01-01T00:00:00Z",
    }
    assert Tenant.model_validate({**tenant, "colour": "red"}).name == "acme"
    with pytest.raises(ValidationError, match="timezone"):
        Tenant.model_validate({**tenant, "created_at": "2026-01-01T00:00:00"})


@pytest.mark.parametrize("name", ["a", "a1", "node-a", "x" * 48])
def test_names(name: str) -> None:
    assert TypeAdapter(Name).validate_python(name) == name


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a b", "a;b", "a\n", "1a", "x" * 49, "ä"])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Name).validate_python(name)


def test_messages_of_the_agent_link_find_their_type() -> None:
    message = TaskMessage(task_id="tsk_1", correlation_id="cor_1", spec=DeleteSlice(allocation_id="alc_1"))
    assert to_agent_adapter.validate_json(message.model_dump_json()) == message
