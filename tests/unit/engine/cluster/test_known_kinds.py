"""Which kinds of pods with claims are remembered: the latest, and no more than memory has room for."""

from support.dra import ask, claim

from engine.claims.read.asks import read_ask, text_of
from engine.devices.known_kinds import KINDS_KEPT, KnownKinds


def asked(selector):
    return read_ask([("gpu", "one", text_of(claim(ask("r", 1, selector))["spec"]))])


def test_kinds_with_long_selectors_are_kept_and_their_code_makes_room():
    """Compiled, each takes a hundred times its length: 128 of the longest took a gigabyte."""
    kinds = KnownKinds()
    asks = [asked(f"{number} == 0 || {'true && ' * 1_100}true") for number in range(100)]
    made = [kinds.kind(one) for one in asks]
    assert [kinds.kind(one) for one in asks] == made
    most = (1 << 19) // 8_800
    assert len(asks) > most >= len(kinds._selectors._codes)


def test_of_short_ones_as_many_are_kept_as_ever():
    kinds = KnownKinds()
    made = [kinds.kind(asked(f"{number} == 0")) for number in range(KINDS_KEPT)]
    assert [kinds.kind(asked(f"{number} == 0")) for number in range(KINDS_KEPT)] == made
