"""Why a kubelet's Topology Manager refuses a pod, in words: which resources disagree about zones, and what would agree.

The kubelet says `TopologyAffinityError` and no more. Under ``restricted`` every resource prefers the fewest zones that
it would need on an empty machine, under ``single-numa-node`` one zone, and all have to prefer the same ones.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from engine.kubelet.admit import ALIGNED, MOST_ZONES, Trial, empty
from engine.kubelet.allocators import row_of
from engine.kubelet.devices.links import bits
from engine.kubelet.hint_merge import Hints, space_of, width_of
from engine.kubelet.machine import CPU, Layout, PodShape, State, TopologyPolicy
from engine.kubelet.resource_requests import ResourceRequest, asks_of
from engine.quantity import format_quantity

_NAMED: Final = 3  # sets of zones in a sentence


class _Wish(NamedTuple):
    """What one resource prefers. ``amount`` as `format_quantity` takes it; ``fewest``: zones that it needs at least."""

    resource: str
    row: int
    amount: int
    preferred: int
    fewest: int

    @property
    def asked(self) -> str:
        return f"{format_quantity(self.resource, self.amount)} {self.resource}"


def disagreement(layout: Layout, state: State, pod: PodShape) -> str:
    """The sentence; "" where the kubelet does not refuse the pod for that."""
    policy = layout.kubelet.policy
    if policy not in {TopologyPolicy.RESTRICTED, TopologyPolicy.SINGLE} or len(layout.zones) > MOST_ZONES:
        return ""
    asks = asks_of(layout.resources, layout.ignored, layout.kubelet, pod)
    trial = Trial(layout, state, pod, asks)
    refusal = trial.run()
    if refusal is None or refusal.reason != ALIGNED:
        return ""
    name = trial.steps[-1].container
    # In pod scope the step is named ``*``, which is no container, so the whole pod is asked about.
    ask = next((ask for _, container, ask in asks.containers if container == name), asks.whole)
    wishes = [*_wishes(layout, trial, Trial(layout, empty(layout), pod, asks), ask)]
    return f"{policy}: {_in_words(layout, wishes)}" if wishes else ""


def _wishes(layout: Layout, trial: Trial, emptied: Trial, ask: ResourceRequest) -> Iterator[_Wish]:
    space, single = space_of(len(layout.zones)), layout.kubelet.policy is TopologyPolicy.SINGLE
    alone = [(row, amount, ResourceRequest(devices=((row, amount),))) for row, amount in ask.devices]
    alone += [(row_of(layout.resources, CPU), ask.cpus * 1000, ResourceRequest(cpus=ask.cpus))] if ask.cpus else []
    alone += [(row, amount, ResourceRequest(memory=((row, amount),))) for row, amount in ask.memory]
    for row, amount, one in alone:
        # Nothing where the resource has no preference: it did not refuse the pod and does not belong into the sentence.
        for hint in trial.hints_for_ask(one):
            first: Sequence[Hints] = emptied.hints_for_ask(one)
            fewest = min((width_of(other.preferred, space) for other in first), default=0)
            preferred = hint.preferred & space.widths[1] if single else hint.preferred
            yield _Wish(layout.resources[row], row, amount, preferred, fewest)


def _in_words(layout: Layout, wishes: Sequence[_Wish]) -> str:
    """What disagrees; then what would agree."""
    single = layout.kubelet.policy is TopologyPolicy.SINGLE
    # The resource that needs fewest zones sets the width on which the others would have to agree.
    width = 1 if single else min(one.fewest or len(layout.zones) for one in wishes)
    wide = [one for one in wishes if one.fewest != width]
    if wide:
        needs = " and ".join(f"{one.asked} {_zones_needed(one)}" for one in wishes)
        most = []
        for one in wide:
            # What so many zones of the machine have at the most.
            amounts = sorted((max(zone[one.row], 0) for zone in layout.allocatable), reverse=True)
            most.append(f"{format_quantity(one.resource, sum(amounts[:width]))} {one.resource}")
        return f"{needs}; they would agree with at most {' and '.join(most)} in a pod"
    short = [one for one in wishes if not one.preferred]
    zones = "one zone" if width == 1 else f"{width} zones"
    if short:
        return f"{zones} with {' or with '.join(one.asked for one in short)} free would do, and none is left"
    where = ", ".join(f"{one.asked} would come from {_zones_in_words(layout, one.preferred)}" for one in wishes)
    return f"{where}; they would agree if {zones} had all of them free"


def _zones_needed(one: _Wish) -> str:
    if not one.fewest:
        return "are more than all zones have"
    need = "needs" if one.asked.startswith("1 ") else "need"
    return f"{need} {one.fewest} zone{'s' * (one.fewest > 1)}"


def _zones_in_words(layout: Layout, family: int) -> str:
    """Sets of zones: ``zone 0 or zone 2+3``."""
    masks = sorted(bits(family), key=lambda mask: (mask.bit_count(), mask))
    narrow = [mask for mask in masks if mask.bit_count() == masks[0].bit_count()][:_NAMED]
    return " or ".join(f"zone {'+'.join(str(layout.zones[at].id) for at in bits(mask))}" for mask in narrow)
