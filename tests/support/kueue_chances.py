"""All that a Kueue with the rules of `support.kueue_rules` may come to, as events come in in one order or another.

The first run leaves out all that may happen or not. Each run is followed by others that differ from it at one more
point. The search goes on where a run has done most of what was seen before it did something else.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from heapq import heappop, heappush

from support.kueue_rules import Chance, EndlessEvictionsError, Event, KueueRules
from support.tree_streams import Move, Seen, Submit

MOST_RUNS = 3000
CYCLES_A_MOVE = 12


class Trial:
    """One run: ``script`` says what happens at its first points; nothing happens at the others."""

    def __init__(self, script: tuple[int, ...]) -> None:
        self.script = script
        self.ways: list[int] = []  # in how many ways something might have happened, point by point

    def choose(self, _: Event, ways: int) -> int:
        """In which way it happens."""
        at = len(self.ways)
        self.ways.append(ways)
        return self.script[at] if at < len(self.script) else 0

    def others(self) -> Iterator[tuple[int, ...]]:
        """What may happen at one more point, after all of these."""
        for at in range(len(self.script), len(self.ways)):
            nothing = (0,) * (at - len(self.script))
            yield from ((*self.script, *nothing, way) for way in range(1, self.ways[at]))


def may_come_to(make: Callable[[Chance], KueueRules], event: Submit | str, seen: Seen) -> bool:
    """Whether Kueue may make of a step what was seen; ``make`` gives one that is at the beginning of the step."""
    return any(_may_come_to(make, event, seen, reverse=reverse) for reverse in (False, True))


def _may_come_to(make: Callable[[Chance], KueueRules], event: Submit | str, seen: Seen, *, reverse: bool) -> bool:
    todo: list[tuple[int, int, int, int, tuple[int, ...]]] = [(0, 0, 0, 0, ())]
    for run in range(MOST_RUNS):
        if not todo:
            return False
        _, different, _, _, script = heappop(todo)
        trial = Trial(script)
        model = make(Chance(trial.choose, reverse))
        done, alike = follow(model, model.moves(event, most=CYCLES_A_MOVE * (len(seen.moves) + 1)), seen)
        if alike:
            return True
        # The last points come first: what was seen was done until shortly before.
        for other in trial.others():
            heappush(todo, (-done, different + 1, -len(other), run, other))
    return False


def follow(model: KueueRules, moves: Iterator[Move], seen: Seen) -> tuple[int, bool]:
    """How many moves there were before one that was not seen, and whether the model did just what was seen."""
    left, done = Counter(map(_known, seen.moves)), 0
    try:
        for move in moves:
            if not left[_known(move)]:
                return done, False
            left[_known(move)] -= 1
            done += 1
    except EndlessEvictionsError:
        return done, False
    return done, done == len(seen.moves) and model.runs.flavors.items() == seen.admitted


def _known(move: Move) -> tuple[str, str, bool]:
    return move.name, move.what, bool(move.taker)
