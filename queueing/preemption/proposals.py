"""Which units to try to take, the best first: by sums, or node by node as kubelets admit.

Where the inside of machines does not decide about the pods, or devices of claims come free, the domains are ranked by
sums alone. Else they are looked into, and what the pods' landings are worth counts (`queueing.preemption.landings`):

- One pod is in one domain of every level, so all nodes are compared, whatever was requested. A node's price is bounded
  from below by amounts, and then by what its zones have and its victims hold there; it is looked into only while that
  bound is the least known, so the first proposals are the best of all nodes, up to ``MOST_NODES`` of them.
- Several pods: domain by domain, those that cost least by sums first. Domains that may cost as much as the best one
  that is known are looked into as well, up to ``AS_GOOD`` nodes, unless no pod could land better.
"""

import heapq
import math
from collections.abc import Iterator
from itertools import groupby, islice
from typing import Final, NamedTuple

import msgspec

from engine.cluster.state import ClusterState
from engine.preemption.every_subset import every_subset
from engine.preemption.model import ChoiceRules, Key, NodeRoom
from engine.reservation_key import HolderKey
from queueing.preemption.domains import SAME, CandidateDomain, CandidateDomains, NodeBound
from queueing.preemption.inside_nodes import EvictableUnit, NodePick, NodesInside, Proposed
from queueing.preemption.landings import Landings
from queueing.preemption.plan import ranked
from queueing.queues.queues import Queues

MOST_NODES: Final = 512  # that are looked into where any node will do
LOOKED: Final = 64  # domains that are looked into node by node, of one highest priority
AS_GOOD: Final = 128  # nodes that are looked into after a domain was found, for the sake of where pods land
FIRST: Final = 8  # proposals for one pod, before domains are gone through as for several


class Proposal(msgspec.Struct, frozen=True):
    """Sets of units to try, each with those before it. ``most``, ``cost``: as of a `CandidateDomain`.

    ``price``: what is compared of a plan that takes the first set, but for what it leaves fragmented, less first; ()
    where that is not known.
    """

    sets: tuple[list[HolderKey], ...]
    most: int
    cost: float
    price: Key = ()


class Proposals(msgspec.Struct):
    """Proposals for one pod set on one flavor."""

    state: ClusterState
    queues: Queues
    site: CandidateDomains
    rules: ChoiceRules
    _holders: dict[HolderKey, EvictableUnit] = msgspec.field(
        default_factory=dict
    )  # while all are as they were when it was asked

    def __iter__(self) -> Iterator[Proposal]:
        site, inner = self.site, NodesInside.for_pod_set(self.state, self.site.outlook.pod_set, self.rules)
        # Devices of claims come free by counts that no node's inside knows, so sums decide.
        if inner is None or site.relief is not None:
            yield from self._by_sums(every=inner is not None)
            return
        if site.need == 1 and self.rules.every_subset:
            yield from self._of_all_sets(inner)
            return
        if site.need == 1:
            one = OnePod(self, inner)
            yield from islice(one, FIRST)
            # Every node was asked with everybody gone, so no domain can take the pod either.
            if one.hopeless:
                return
        # The whole flavor is one domain then; its cheapest nodes alone are looked into, and sums speak for the rest.
        large = site.outlook.rank < 0 and site.outlook.tree.size > MOST_NODES
        yield from self._looked_into(inner, MOST_NODES if large else None)
        if large:
            yield from self._by_sums()

    def _of_all_sets(self, inner: NodesInside) -> Iterator[Proposal]:
        """The one set of the highest S (`engine.preemption.every_subset`)."""
        rooms = [self.room_of_leaf(inner, leaf) for leaf in sorted(set(self.site.rows.leaf.tolist()))]
        found = every_subset(rooms, inner.preemptor, self.rules)
        if found is not None:
            yield Proposal(([victim.key for victim in found.victims],), found.cost.highest, 0.0)

    def room_of_leaf(self, inner: NodesInside, leaf: int) -> NodeRoom:
        """A node by its leaf, with the candidates there."""
        return inner.room_of_node(
            self.site.outlook.tree.names[leaf], map(self.holder_of_unit, self.site.owners_of(leaf))
        )

    def _by_sums(self, *, every: bool = False) -> Iterator[Proposal]:
        site = self.site
        for region in site.regions(every=every, by_count=self.rules.by_count):
            yield Proposal((site.keys(region.narrow), site.keys(region.wide)), region.most, region.cost)

    def _looked_into(self, inner: NodesInside, most_nodes: int | None) -> Iterator[Proposal]:
        """``most_nodes``: of one domain, the cheapest ones."""
        site, by_count = self.site, self.rules.by_count
        for _, regions in groupby(site.regions(every=True, by_count=by_count), lambda region: region.most):
            found: list[tuple[Key, int, Proposal]] = []
            best: Key = (math.inf,)
            least, nodes, settled = math.inf, 0, False
            for number, region in enumerate(islice(regions, LOOKED)):
                # Within `SAME` only size and age differ, so a domain there
                # may cost as much and let the pods land better.
                if region.cost >= (least if settled or nodes > AS_GOOD else least * SAME):
                    break  # by sums alone those that follow cost as much as one that was looked into
                chosen = self._chosen(inner, region, most_nodes)
                if chosen is None:
                    continue
                sets = chosen.keys, site.keys(region.wide)
                found.append((chosen.price, number, Proposal(sets, region.most, region.cost, chosen.price)))
                least = min(least, site.cost(map(site.level_of_unit, chosen.keys)))
                nodes += len(region.leaves)
                if chosen.price < best:
                    best, settled = chosen.price, chosen.settled
            # By price, then in the order of the sums: proposals themselves have no order.
            for _, _, proposal in sorted(found, key=lambda one: one[:2]):
                yield proposal

    def _chosen(self, inner: NodesInside, region: CandidateDomain, most_nodes: int | None) -> Proposed | None:
        """Whom the kubelets of a domain need gone; None where they would not take the pods anyway."""
        outlook = self.site.outlook
        leaves = [leaf for leaf in region.leaves.tolist() if outlook.passing[leaf]][:most_nodes]
        on = {name: [self.holder_of_unit(key) for key in keys] for name, keys in self.site.owners_on(region).items()}
        return inner.victims([outlook.tree.names[leaf] for leaf in leaves], on)

    def holder_of_unit(self, key: HolderKey) -> EvictableUnit:
        """A unit by its key, with its bound pods."""
        found = self._holders.get(key)
        if found is None:
            other = self.queues.entry_of_unit(key)
            pods = [self.state.pods[pod] for pod in sorted(other.pods) if pod in self.state.pods]
            found = self._holders[key] = EvictableUnit(
                key, self.site.level_of_unit(key), tuple(pods), other.workload.key
            )
        return found


class _Node(NamedTuple):
    """A node with its price, or with a bound of it that is closer with each look; compared in this order.

    ``after``: 2 where the bound by sums was as much, 1 where that by amounts was, else 0. So of equal prices those come
    first that seemed less, then nodes in their order, whatever else was looked at.
    """

    price: Key
    after: int
    number: int
    bounds: tuple[Key, ...]  # by sums, by amounts, by zones, as far as looked
    room: NodeRoom | None = None
    pick: NodePick | None = None

    @classmethod
    def node_with_bounds(
        cls,
        number: int,
        price: Key,
        bounds: tuple[Key, ...],
        room: NodeRoom | None = None,
        pick: NodePick | None = None,
    ) -> "_Node":
        """Set ``after``."""
        after = next((2 - at for at, bound in enumerate(bounds[:2]) if bound == price), 0)
        return cls(price, after, number, bounds, room, pick)


class OnePod:
    """Proposals for one pod, the best node first."""

    def __init__(self, proposals: Proposals, inner: NodesInside) -> None:
        self._of, self._inner, self._site = proposals, inner, proposals.site
        self.hopeless = True  # whether no node takes the pod with everybody gone, as far as was looked

    def __iter__(self) -> Iterator[Proposal]:
        rules = self._of.rules
        nodes = self._site.bounded_nodes(by_count=rules.by_count)
        # Nodes that are not looked at may take the pod, so nothing is said of hopelessness any more.
        if len(nodes) > MOST_NODES:
            self.hopeless, nodes = False, nodes[:MOST_NODES]
        heap = [
            _Node.node_with_bounds(number, bound, (bound,)) for number, bound in enumerate(map(self._bound_node, nodes))
        ]
        heapq.heapify(heap)
        while heap:
            node = heapq.heappop(heap)
            if node.room is not None and node.pick is not None:
                chosen = [node.room.victims[at].key for at in node.pick.victims]
                everybody = [victim.key for victim in node.room.victims]
                yield Proposal((chosen, everybody), nodes[node.number].highest, 0.0, node.price[:-1])
            elif (closer := self._closer(node, nodes[node.number].leaf)) is not None:
                heapq.heappush(heap, closer)

    def _closer(self, node: _Node, leaf: int) -> _Node | None:
        """A node after the next look at it: by its victims' amounts, by its zones, by its kubelet; None: it is out."""
        inner, room = self._inner, node.room
        if room is None:
            room = self._of.room_of_leaf(inner, leaf)
            bound = inner.bound_price(room)
        elif len(node.bounds) == 2:
            bound = inner.bound_inside(room)
        else:
            pick = None if inner.hopeless(room) else inner.cheapest(room)
            self.hopeless &= pick is None
            if pick is None or not pick.victims:
                return None
            return _Node.node_with_bounds(node.number, inner.price(room, pick), node.bounds, room, pick)
        if bound is None:
            return None
        # Bounds never fall with a closer look: the heap relies on it, and each is computed in another way.
        bound = max(bound, node.price)
        return _Node.node_with_bounds(node.number, bound, (*node.bounds, bound), room)

    def _bound_node(self, node: NodeBound) -> Key:
        machine = self._of.state.machines.get(self._site.outlook.tree.names[node.leaf])
        ideal = Landings.count_landings([self._inner.ideal(None if machine is None else machine.layout)])
        return (*ranked(self._of.rules, node.highest, node.total, node.size, ideal), node.freed)
