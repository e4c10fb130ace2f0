"""The registry of nouns and their events."""

import pytest

from gpuaas_contract import ids
from gpuaas_contract.events import EVENTS, Event
from gpuaas_contract.nouns import Noun


def test_a_noun_is_its_name_on_the_wire() -> None:
    assert (str(Noun.VOLUME), Noun.VOLUME.prefix, Noun.VOLUME.href("vol_1")) == ("volume", "vol", "/v1/volumes/vol_1")


def test_a_noun_makes_and_knows_its_ids() -> None:
    made = ids.new_id(Noun.VOLUME)
    assert made.startswith("vol_")
    assert ids.is_id(made, Noun.VOLUME)
    assert not ids.is_id(made, Noun.NODE)


def test_no_two_kinds_of_things_share_a_prefix() -> None:
    others = [value for name, value in vars(ids).items() if name.isupper() and name not in Noun.__members__]
    prefixes = [noun.prefix for noun in Noun if noun.prefix] + [value for value in others if isinstance(value, str)]
    assert len(prefixes) == len(set(prefixes))


@pytest.mark.parametrize("noun", Noun)
def test_every_noun_has_events_that_know_it(noun: Noun) -> None:
    assert list(EVENTS[noun])
    assert all(event.noun is noun for event in EVENTS[noun])


def test_events_without_a_noun_cannot_be_defined() -> None:
    with pytest.raises(TypeError, match="noun"):

        class _Events(Event):
            CREATED = "created"
