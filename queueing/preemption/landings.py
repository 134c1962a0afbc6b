"""Where the pods of a preemptor land inside their nodes: compared of plans, as the search for one pod compares it.

Of one pod it is one zone, one socket, or across sockets (`engine.preemption.model.Landing`); of several pods how many
land how wide. Pods that take nothing inside a node land well anywhere and do not count; where the insides of no nodes
are known, or all pods are such, there are no landings at all (None), so that plans are compared without them.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from engine.cluster.assignment import Assignment
from engine.cluster.state import ClusterState
from engine.kubelet.admit import empty
from engine.kubelet.machine import Layout, NumaPlacement
from engine.kubelet.rebuild import asked, inner, places_of
from engine.preemption.model import ChoiceRules, Landing
from engine.preemption.search import landing_of
from engine.reservation_key import HolderKey, ReservationKey


class Landings(NamedTuple):
    """How many pods land how wide; fewer is better, the widest first."""

    unknown: int = 0
    across: int = 0
    socket: int = 0
    zone: int = 0

    @classmethod
    def count_landings(cls, landings: Iterable[Landing]) -> "Landings":
        """Count them."""
        counts = [0, 0, 0, 0]
        for landing in landings:
            counts[landing] += 1
        zone, socket, across, unknown = counts
        return cls(unknown, across, socket, zone)

    @property
    def wide(self) -> tuple[int, int, int]:
        """What is compared where priorities and number of victims are equal, less first."""
        return self[:3]

    def score(self, rules: ChoiceRules, total: int) -> float:
        """S of Equation 1, with the mean of T over the pods; ``total``: the sum of the victims' priorities."""
        tiers = (Landing.UNKNOWN, Landing.ACROSS, Landing.SOCKET, Landing.ZONE)
        worth = sum(count * rules.scoring.topology(landing) for count, landing in zip(self, tiers, strict=True))
        return rules.scoring.score_of(total, worth, max(sum(self), 1))


def landings_of(state: ClusterState, key: HolderKey, assignments: Sequence[Assignment]) -> Landings | None:
    """Where the pods of these assignments land as things are in a state that they are not in yet. Changes nothing."""
    inside = [part for part in assignments if inner(part.shape) is not None]
    # No landings at all: a count of zeros would compare as "all land well".
    if not inside or not state.machines:
        return None
    # Beside what it holds: it may hold something already.
    checkpoint, trial = state.begin(), ReservationKey.for_trial(key, "landing")
    try:
        # Reserved as a trial: the engine then decides the zones as it would at an admission.
        state.reserve(trial, assignments)
        return Landings.count_landings(
            landing
            for part in inside
            for node, count in _nodes(part)
            for landing in _landings_on_node(state, trial, part.pod_set, node, count)
        )
    finally:
        state.rollback(checkpoint)


def crossing_without_need(state: ClusterState, key: HolderKey, assignments: Sequence[Assignment]) -> int:
    """How many pods of these assignments would cross sockets, and would not if nothing else ran on their node.

    In a state that they are not in yet. Changes nothing.
    """
    found, inside = 0, [part for part in assignments if inner(part.shape) is not None]
    if not inside:
        return 0
    checkpoint, trial = state.begin(), ReservationKey.for_trial(key, "landing")
    try:
        state.reserve(trial, assignments)
        for part in inside:
            needs: dict[int, bool] = {}  # by layout
            for node, count in _nodes(part):
                across = _landings_on_node(state, trial, part.pod_set, node, count).count(Landing.ACROSS)
                if across and part.shape is not None:
                    layout = state.machines[node].layout
                    if id(layout) not in needs:
                        # A pod that crosses sockets on an empty machine too crosses
                        # everywhere: it says nothing against this place.
                        alone = asked(layout, empty(layout), part.shape)
                        needs[id(layout)] = landing_of(layout, alone.zones) is Landing.ACROSS
                    found += 0 if needs[id(layout)] else across
        return found
    finally:
        state.rollback(checkpoint)


def _nodes(part: Assignment) -> list[tuple[str, int]]:
    return [on for piece in part.slices for on in piece.nodes]


def _landings_on_node(state: ClusterState, trial: ReservationKey, pod_set: str, node: str, count: int) -> list[Landing]:
    """Of the pods on one node; those that its kubelet is not known to take are the worst."""
    machine = state.machines.get(node)
    placements = state.placements(trial, pod_set, node) if machine is not None else ()
    found = [] if machine is None else [_landing(machine.layout, placement) for placement in placements]
    # Fewer placements than pods: the kubelet is not known to take the rest.
    return found + [Landing.UNKNOWN] * (count - len(found))


def _landing(layout: Layout, placement: NumaPlacement) -> Landing:
    at, _ = places_of(layout)
    zones = [at[use.zone] for use in placement.zones if any(use.amounts.values()) or any(use.devices.values())]
    return landing_of(layout, sum(1 << zone for zone in zones))
