"""Why ours and a real Kueue did something else in a step: by which of our rules, put in place of Kueue's.

Both sides begin a step in the same state, as the steps before it were alike. A difference is explained only where the
model of `support.kueue_rules` does what the real Kueue did, and with a few of our rules does what ours did; the fewest
rules count. What follows the first difference follows from it, and is not compared.
"""

from collections.abc import Collection, Sequence
from functools import partial
from itertools import combinations
from typing import Final, NamedTuple

from support.kueue_chances import follow, may_come_to
from support.kueue_rules import Chance, EndlessEvictionsError, Event, KueueRules
from support.kueue_victims import Rule
from support.tree_streams import Answer, Move, Seen, Stream, Submit, resolved

ALIKE: Final = "alike"
TIMING: Final = "Kueue gives what was freed to another than who freed it, or not, as its events come in"
ENDLESS: Final = "Kueue's evict each other without end"
UNKNOWN: Final = "not explained"
FEW_RULES: Final = 2
MOST_RULES: Final = 3
CHANCES: Final = [
    Chance(choose, reverse)
    for choose in (lambda *_: 0, lambda event, _: event is Event.WAKE, lambda event, _: event is Event.MISSED)
    for reverse in (False, True)
]


class Difference(NamedTuple):
    """The first step in which they differ, how, and the moves of both."""

    step: int
    kind: str
    sides: str = ""


class _Before(NamedTuple):
    """The state in which a step begins: who runs, who is known, and who was evicted for whom."""

    stream: Stream
    seen: Seen
    known: dict[str, Submit]
    evictions: Sequence[Move]


def find_difference(stream: Stream, theirs: Answer, ours: Answer) -> Difference:
    """See the module."""
    known: dict[str, Submit] = {}
    evictions: list[Move] = []
    before = _Before(stream, Seen(frozenset(), ()), known, evictions)
    for step, ((event, other), (_, mine)) in enumerate(zip(theirs, ours, strict=True)):
        if not _are_alike(mine, other):
            return Difference(step, _explained(before, event, mine, other), _sides(event, mine, other))
        if isinstance(event, Submit):
            known[event.name] = event
        elif event:
            del known[event]
        evictions += [move for move in mine.moves if move.taker]
        before = before._replace(seen=other)
    if len(theirs) == len(stream.steps):
        return Difference(len(theirs), ALIKE)
    # Evictions without end are no answer; the events of that step are what they would have been.
    event = resolved(stream.steps[len(theirs)], before.seen.admitted)
    ends = all(_ends(_model(before, (), chance), event) for chance in CHANCES)
    return Difference(len(theirs), UNKNOWN if ends else ENDLESS)


def _explained(before: _Before, event: Submit | str, mine: Seen, other: Seen) -> str:
    if not may_come_to(partial(_model, before, ()), event, other):
        return UNKNOWN
    for count in range(MOST_RULES + 1):
        # Some of many rules may come to the same by chance: then all of them together have to as well.
        if count > FEW_RULES and not _does_as_ours(before, event, mine, tuple(Rule)):
            break
        for rules in combinations(Rule, count):
            if _does_as_ours(before, event, mine, rules):
                return "; ".join(rules) or TIMING
    return UNKNOWN


def _does_as_ours(before: _Before, event: Submit | str, mine: Seen, rules: Collection[Rule]) -> bool:
    turns = _turns(mine.moves)
    models = (_model(before, rules, chance) for chance in CHANCES)
    return any(follow(model, model.moves(event, turns), mine)[1] for model in models)


def _ends(model: KueueRules, event: Submit | str) -> bool:
    try:
        list(model.moves(event))
    except EndlessEvictionsError:
        return False
    return True


def _model(before: _Before, rules: Collection[Rule], chance: Chance) -> KueueRules:
    model = KueueRules(before.stream, frozenset(rules), chance)
    model.become(before.seen, before.known, before.evictions)
    return model


def _turns(moves: Sequence[Move]) -> list[list[str]]:
    """Who gets something, a place or victims, in each cycle of ours: who is admitted in it comes before who evicts."""
    cycles, last = [list[str]()], ""
    for move in moves:
        if last and not move.taker:
            cycles.append([])
        cycles[-1].append(move.taker or move.name)
        last = move.taker
    return [list(dict.fromkeys(names)) for names in cycles]


def _are_alike(one: Seen, other: Seen) -> bool:
    return (one.admitted, one.evicted) == (other.admitted, other.evicted)


def _sides(event: Submit | str, mine: Seen, other: Seen) -> str:
    texts = (" ".join(f"{move.taker}>{move.name}:{move.what}" for move in one.moves) for one in (mine, other))
    return "; {}; ours {}; Kueue {}".format(event, *texts)
