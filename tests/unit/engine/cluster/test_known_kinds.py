"""Which kinds of pods with claims are remembered: the latest, and no more than memory has room for."""

from support.dra import ask, claim

from engine.claims.read.asks import read_ask, text_of
from engine.devices.known_kinds import CHARACTERS_KEPT, KINDS_KEPT, KnownKinds


def asked(selector):
    return read_ask([("gpu", "one", text_of(claim(ask("r", 1, selector))["spec"]))])


def test_kinds_with_long_selectors_make_room_for_each_other():
    """Each is compiled, to a hundred times its length: 128 of the longest took a gigabyte."""
    kinds = KnownKinds()
    asks = [asked(f"{number} == 0 || {'true && ' * 1_100}true") for number in range(100)]
    for one in asks:
        kinds.kind(one)
    assert kinds.kind(asks[-1]) is kinds.kind(asks[-1])
    most = CHARACTERS_KEPT // len(asks[0].key)
    assert most < len(asks)
    assert len(kinds._kinds) == most


def test_of_short_ones_as_many_are_kept_as_ever():
    kinds = KnownKinds()
    made = [kinds.kind(asked(f"{number} == 0")) for number in range(KINDS_KEPT)]
    assert [kinds.kind(asked(f"{number} == 0")) for number in range(KINDS_KEPT)] == made
