"""The victims of the highest S, by asking the kubelet of every node about every set of its victims.

The way of the paper on FlexTopo (Table 5: FlexTopo without IMP), to be compared with: nobody but the simulator asks for
it (`ChoiceRules.every_subset`).
"""

from collections.abc import Sequence
from itertools import combinations

from engine.kubelet.rebuild import asked
from engine.preemption.blocks import kind_of, wanted
from engine.preemption.model import Choice, ChoiceRules, NodeRoom, Preemptor
from engine.preemption.search import cost_of, freed_by, landing_of, state_without


def every_subset(rooms: Sequence[NodeRoom], preemptor: Preemptor, rules: ChoiceRules) -> Choice | None:
    """The victims of the highest S among all sets of all nodes, 2^m - 1 a node; None where none makes room.

    Each set is tried on its node's kubelet, whether a smaller one would do or not. Of equal S the fewest victims, then
    the first node.
    """
    best: Choice | None = None
    for room in rooms:
        eligible = [at for at, victim in enumerate(room.victims) if victim.priority < preemptor.above]
        for size in range(1, len(eligible) + 1):
            for picked in combinations(eligible, size):
                found = _try_victims(room, picked, preemptor, rules)
                if found is not None and (best is None or _order(found) < _order(best)):
                    best = found
    return best


def _order(choice: Choice) -> tuple[float, int]:
    return -choice.score, choice.cost.size


def _try_victims(room: NodeRoom, picked: tuple[int, ...], preemptor: Preemptor, rules: ChoiceRules) -> Choice | None:
    """What the kubelet says with these victims gone; None where it refuses."""
    needs = wanted(kind_of(room.layout), preemptor)
    if needs is None or needs.asked is None or room.layout is None:
        return None
    # Whether the node has the amounts with these victims gone.
    if not all(
        room.free.get(name, 0) + sum(room.victims[at].requests.get(name, 0) for at in picked) >= amount
        for name, amount in preemptor.requests.items()
    ):
        return None
    admission = asked(room.layout, state_without(room, picked), needs.asked)
    if not admission.admitted:
        return None
    victims, landing = tuple(room.victims[at] for at in picked), landing_of(room.layout, admission.zones)
    cost = cost_of(victims)
    return Choice(room.node, victims, cost, landing, freed_by(victims), rules.scoring.score(cost.total, landing))
