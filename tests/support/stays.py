"""Who has room when, as far as that is stored, and whether a victim's room was needed by whom it went for.

A workload stays from the moment at which an admission or a nomination of it is stored until it has neither; one that
comes back stays anew, perhaps elsewhere. What it holds meanwhile is what its pods held once all of them ran; where they
never did, its slots, in whatever zone of their nodes.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from support.cluster_checker import number, slices_of

SCARCE = "nvidia.com/gpu"
HOSTNAME = "kubernetes.io/hostname"
ANY = "?"  # a zone that is not known yet
Json = dict[str, Any]
Place = tuple[str, str]  # node and zone; zone "" is all of it
Held = Mapping[Place, float]  # of the scarce resource
Span = tuple[int, int]  # of revisions


class Going(NamedTuple):
    """Owners: who goes for others, and those others."""

    victims: set[str]
    preemptors: set[str]


@dataclass
class Stay:
    """One stay of a workload. ``until``: 0 as long as it lasts."""

    since: int
    until: int = 0
    slots: Held = field(default_factory=dict)  # by node, their zones are not known
    landed: Held = field(default_factory=dict)  # of its pods, once all ran

    def lasts(self, since: int, until: int) -> bool:
        """Whether some of it is in a span of revisions."""
        return self.since <= until and not 0 < self.until <= since

    def held(self, running: Held) -> Held:
        """What it holds, with ``running`` of it there already."""
        if self.landed:
            return {place: max(self.landed.get(place, 0), running.get(place, 0)) for place in {*self.landed, *running}}
        there: Counter = Counter()
        for (node, _), amount in running.items():
            there[node, ANY] += amount
        return {**running, **{place: amount - there[place] for place, amount in self.slots.items()}}


class Stays:
    """The stays of all workloads, by their owners."""

    def __init__(self) -> None:
        self._of: dict[str, list[Stay]] = defaultdict(list)

    def changed(self, owner: str, revision: int, given: list[Json]) -> None:
        """A Workload was written, with an admission, a nomination, both or neither."""
        stays = self._of[owner]
        lasts = bool(stays) and not stays[-1].until
        if given and not lasts:
            stays.append(Stay(revision))
        if given:
            stays[-1].slots = slots_of(given)
        elif lasts:
            stays[-1].until = revision

    def landed(self, owner: str, held: Held) -> None:
        """All its pods run; what they held first counts."""
        if self._of[owner] and not self._of[owner][-1].landed:
            self._of[owner][-1].landed = held

    def beside(self, running: Mapping[str, Held], without: set[str], span: Span, others: Going) -> "Beside":
        """What others than ``without`` hold, and are promised.

        ``running``: what pods held when the plan was stored, by owner. Of those who have none, it is what they were
        promised until it was carried out: plans of one cycle are stored one after the other, in any order, and each
        counts on all of them.
        """
        found = Beside()
        for owner in sorted((self._of.keys() | running.keys()) - without):
            there = running.get(owner, {})
            until = span[0] if there else span[1]  # one that runs comes back after it was decided, if at all
            stay = next((stay for stay in self._of[owner] if stay.lasts(span[0], until)), Stay(0))
            (found.leaving if owner in others.victims else found.staying).update(there)
            coming = found.promised if owner in others.preemptors else found.coming
            for (node, zone), amount in stay.held(there).items():
                if (more := amount - there.get((node, zone), 0)) > 0:
                    coming.append((node, more))
        return found


def slots_of(given: list[Json]) -> dict[Place, float]:
    """What the slots of an admission, and of a nomination beside it, take of their nodes."""
    taken: Counter = Counter()
    for part in (part for one in given for part in one.get("podSetAssignments", ()) if part.get("topologyAssignment")):
        each = number(part.get("resourceUsage", {}).get(SCARCE, 0)) / max(part["count"], 1)
        for labels, count in slices_of(part["topologyAssignment"]):
            taken[labels.get(HOSTNAME, ""), ANY] += each * count
    return dict(taken)


@dataclass
class Beside:
    """What others have when somebody plans, and are to have (node, amount), wherever their kubelets put it."""

    staying: Counter = field(default_factory=Counter)
    leaving: Counter = field(default_factory=Counter)  # of victims of others
    coming: list[tuple[str, float]] = field(default_factory=list)
    promised: list[tuple[str, float]] = field(default_factory=list)  # to those who wait for these victims

    def collides(self, landed: Held, victim: Held, zones: Mapping[str, Mapping[str, float]]) -> bool:
        """Whether a victim and whom it went for, which has to be there, would not have had room together on a node.

        At once, with the victims of others still there, or once all have come: whoever came first, in whatever zone its
        kubelet would have put it. ``zones``: by node what each has. What is promised counts from the beginning, unless
        it is the room of a victim of others.
        """
        return any(self._crowded(node, landed, victim, zones[node]) for node, _ in landed if _on(node, victim))

    def told(self, nodes: set[str]) -> str:
        """What there is on some nodes, in words."""
        held = {"stays": self.staying, "leaves": self.leaving}
        parts = {word: {place: n for place, n in found.items() if place[0] in nodes} for word, found in held.items()}
        coming = {"comes": self.coming, "is promised": self.promised}
        parts |= {word: [one for one in found if one[0] in nodes] for word, found in coming.items()}
        return "; ".join(f"{word}: {found}" for word, found in parts.items())

    def _crowded(self, node: str, landed: Held, victim: Held, zones: Mapping[str, float]) -> bool:
        free = {
            zone: room - self.staying[node, zone] - (victim.get((node, zone), 0) if zone != ANY else 0)
            for zone, room in zones.items()
        }
        items = [*_on(node, landed), *[amount for name, amount in self.coming if name == node]]
        items += [amount for (name, zone), amount in victim.items() if name == node and zone == ANY]
        promised = [amount for name, amount in self.promised if name == node]
        leaving = {zone: self.leaving[node, zone] for zone in zones}
        now = {zone: room - leaving[zone] for zone, room in free.items()}
        late, items = [*items, *promised], list(items)
        for amount in promised:
            zone = max(leaving, key=leaving.__getitem__)
            if leaving[zone] >= amount:
                leaving[zone] -= amount
            else:
                items.append(amount)
        return _tight(now, items) or _tight(free, late)


def _on(node: str, held: Held) -> list[float]:
    return [amount for (name, _), amount in held.items() if name == node]


def _tight(free: Mapping[str, float], items: list[float]) -> bool:
    return tight(tuple(sorted(free.values())), tuple(sorted(items)))


@cache
def tight(free: tuple[float, ...], items: tuple[float, ...]) -> bool:
    """Whether in some order, with some choice of zones, one of them would find no zone with room for all of it."""
    for at, item in enumerate(items):
        rest = (*items[:at], *items[at + 1 :])
        fits = [zone for zone, room in enumerate(free) if room >= item]
        if not fits or any(
            tight(tuple(sorted((*free[:zone], free[zone] - item, *free[zone + 1 :]))), rest) for zone in fits
        ):
            return True
    return False
