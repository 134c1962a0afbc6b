"""How to count pods of one shape on one kind of layout: what they ask of zones, and which closed form holds.

Links and wishes (`engine.kubelet.device_manager`, `engine.kubelet.numa_policy`) either change nothing, or refuse every
pod, or leave pods that fit one zone alone, or need the exact admission.
"""

from engine.kubelet.device_manager import must_link
from engine.kubelet.machine import CPU, PodShape, Scope, TopologyPolicy
from engine.numa.layout_class import Traits
from engine.numa.zone_requests import PERMISSIVE, Steps, ZoneRequest, steps_of

SINGLE, RESTRICTED = TopologyPolicy.SINGLE, TopologyPolicy.RESTRICTED


class CountPlan:
    """A pod shape, worked out for a kind of layout.

    ``strict``: the kubelet refuses what it cannot align. ``one_zone``: kubelet or wish refuse what is not all in one
    zone. ``bounded``: the wish may refuse what is not. ``refused``: all are refused, whatever is free. ``loose``: the
    memory of the whole pod is aligned, but given container by container; where no zones hold all of it the kubelet has
    no hint for it, and may yet find it. ``grouped``: zones that gave memory alone or together may decide who gives
    more, ``groups_itself``: within one pod. ``lent``: init containers leave something to later ones.
    """

    def __init__(self, traits: Traits, shape: PodShape, steps: Steps) -> None:
        policy, several = traits.kubelet.policy, steps.with_memory > 1
        self.policy = policy
        self.asks = steps.each
        self.whole = steps.whole
        self.lent = steps.lent
        self.grouped = traits.exact or several
        self.groups_itself = several
        self.loose = traits.exact and several and traits.kubelet.scope is Scope.POD
        self.strict = policy in {SINGLE, RESTRICTED}
        self.one_zone = policy is SINGLE
        self.bounded = False
        self.refused = steps.cut or _lacks_links(traits, shape) or _unpinned(traits, shape, self.whole)

    @property
    def alone(self) -> bool:
        """Whether one machine can be counted by looking at its zones one after the other."""
        simple = (self.strict or self.one_zone) and not (self.loose or self.refused or self.bounded)
        return simple and len(self.asks) == 1 and not self.asks[0].present

    def take_in_wish(self, traits: Traits, shape: PodShape) -> bool:
        """Mind the pod's wish too; False where that needs the exact admission."""
        judged = [
            row for row in self.whole.rows if not shape.wish_resources or traits.resources[row] in shape.wish_resources
        ]
        if not judged:
            return True
        if self.policy is TopologyPolicy.NONE or len(self.asks) > 1 or self.loose:
            return False
        if self.policy is SINGLE or (self.policy is RESTRICTED and shape.wish is RESTRICTED):
            return True
        (ask,) = self.asks
        if ask.present or (ask.memory and traits.exact):
            return False
        # A restricted kubelet gives all resources the same zones, so a wish about some of them is a wish about all.
        self.one_zone = shape.wish is SINGLE and (self.policy is RESTRICTED or len(judged) == len(ask.rows))
        self.bounded = not self.one_zone
        return True


def plan_for(traits: Traits, shape: PodShape) -> CountPlan | None:
    """How to count pods of that shape; None where the exact admission has to be asked for every state."""
    if not traits.plain or not _links_are_simple(traits, shape):
        return None
    steps = steps_of(traits, shape)
    if steps is None or (steps.lent and (shape.wish not in PERMISSIVE or must_link(shape))):
        return None
    plan = CountPlan(traits, shape, steps)
    return plan if shape.wish in PERMISSIVE or plan.refused or plan.take_in_wish(traits, shape) else None


def _unpinned(traits: Traits, shape: PodShape, whole: ZoneRequest) -> bool:
    """Whether the wish names a resource that the pod asks for and that the kubelet does not pin."""
    if shape.wish in PERMISSIVE:
        return False
    pinned = {traits.resources[row] for row in whole.rows}
    if any(name == CPU and amount % 1000 for each in shape.containers for name, amount in each.requests):
        # The static CPU manager pins whole CPUs alone: a container with a part of one gets no hint and shares the rest.
        pinned.discard(CPU)
    asked = {name for each in shape.containers for name, amount in (*each.requests, *each.limits) if amount}
    return not pinned.issuperset(asked.intersection(shape.wish_resources))


def _lacks_links(traits: Traits, shape: PodShape) -> bool:
    """Whether something has to be linked of which no links are known, or that is not given out by zones at all."""
    known = {*traits.graphs, *traits.cliques}.difference(traits.absent, traits.ignored)
    return not known.issuperset(must_link(shape))


def _links_are_simple(traits: Traits, shape: PodShape) -> bool:
    """Whether no rule about links or cards decides: all that has to be linked is one clique, or not known at all."""
    for name in traits.cards:
        if any(asked == name and amount for each in shape.containers for asked, amount in each.limits):
            return False
    # In a clique any devices are linked, and without known links all are refused: both need no look at single devices.
    return not any(name in traits.graphs for name in must_link(shape))
