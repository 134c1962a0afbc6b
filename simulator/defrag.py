"""Which workloads to move so that the most domains of a level become whole: a plan, nothing else.

A domain is *whole* where no workload has pods or slots, and nothing that must stay is there. A workload moves as one:
all its pods are evicted, and placed again by the engine, as its request says, in what room there is then. A step
empties one domain (or several, where a gang lies in them).

Rules
- A step is tried on the state itself, in a transaction: out with the workloads, the domain and all that are whole
  closed, and every workload placed again. What does not fit is no step.
- Each step takes what frees a domain for the fewest pods moved; then what moves nobody twice; then tree order. So the
  plan is greedy. Where there are few domains to empty, every set of them is tried as one step too, and taken where it
  frees more, or as many for fewer pods.
- Steps hold one after the other. The state is left as it was.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.cluster.assignment import Assignment
from engine.cluster.state import ClusterState
from engine.cluster.tree import Path, Tree
from engine.model import PODS, PodSet, Policy, TopologyRequest
from engine.placement.place import place
from engine.placement.relocate import off
from engine.reservation_key import HolderKey, ReservationKey, order_of
from engine.results import Refusal, WorkloadRequest

ALL_SETS: Final = 8  # up to so many domains that could be emptied, every set of them is tried
CLOSED: Final = ReservationKey.for_trial("", "closed")
Mask = NDArray[np.bool_]


class Movable(msgspec.Struct, frozen=True):
    """A workload that may be moved. ``pods``: the keys of its pods that are bound.

    ``as_one``: all of it goes to other nodes than it has, as its ranks belong together.
    """

    pod_sets: tuple[PodSet, ...]
    flavors: tuple[str, ...]
    pods: tuple[str, ...] = ()
    priority: int = 0
    as_one: bool = False

    @property
    def count(self) -> int:
        """How many pods move with it."""
        return sum(pod_set.count for pod_set in self.pod_sets)


class DefragMove(msgspec.Struct, frozen=True):
    """One workload: where it was (node -> pods), and where it could be instead; ``nodes``: that by pod set."""

    workload: str
    pods: int
    priority: int
    before: dict[str, int]
    after: dict[str, int]
    nodes: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)


class DefragStep(msgspec.Struct, frozen=True):
    """Moves that belong together, and the domains that are whole after them and were not before."""

    moves: tuple[DefragMove, ...]
    freed: tuple[Path, ...]

    @property
    def pods(self) -> int:
        """How many pods it moves."""
        return sum(move.pods for move in self.moves)


class DefragPlan(msgspec.Struct, frozen=True):
    """``whole``: whole domains before and after, of ``domains``."""

    level: str
    domains: int
    whole: tuple[int, int]
    steps: tuple[DefragStep, ...]


@dataclass
class _Search:
    state: ClusterState
    tree: Tree
    rank: int
    movable: Mapping[str, Movable]
    stays: Mask  # leaves where something is that is not moved
    moved: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.leaf = {name: at for at, name in enumerate(self.tree.names)}
        self.owner = self.tree.owners[self.rank]

    def pods_by_node(self, key: HolderKey) -> dict[str, int]:
        """Where a workload, or what is held beside one, is: node -> pods."""
        found: dict[str, int] = {}
        for part in self.state.assignments(key).values():
            for piece in part.slices:
                for name, count in piece.nodes:
                    found[name] = found.get(name, 0) + count
        return found

    def nodes_of_workload(self, workload: str) -> dict[str, tuple[str, ...]]:
        """The nodes of each of its pod sets."""
        parts = self.state.assignments(workload).items()
        return {name: tuple(sorted({node for piece in part.slices for node, _ in piece.nodes})) for name, part in parts}

    def whole_mask(self) -> Mask:
        """Which domains are whole now."""
        used: Mask = self.stays.copy()
        for key in self.state.workloads:
            if key != CLOSED:
                used[[self.leaf[name] for name in self.pods_by_node(key) if name in self.leaf]] = True
        found: Mask = ~np.logical_or.reduceat(used, self.tree.bounds[self.rank][:-1])
        return found

    def tenants(self) -> dict[int, list[str]]:
        """Domain -> who is there, for domains that only movable workloads keep from being whole."""
        found: dict[int, list[str]] = {}
        barred = {int(domain) for domain in self.owner[self.stays]}
        for key in sorted(self.state.workloads, key=order_of):
            domains = {int(self.owner[self.leaf[name]]) for name in self.pods_by_node(key) if name in self.leaf}
            if isinstance(key, ReservationKey) or key not in self.movable:
                barred |= domains
                continue
            for domain in domains:
                found.setdefault(domain, []).append(key)
        return {domain: names for domain, names in found.items() if domain not in barred}

    def empty(self, domains: Collection[int], workloads: Collection[str], whole: Mask) -> DefragStep | None:
        """Empty some domains, if what is there fits elsewhere; the state keeps the moves. ``whole``: as it was."""
        state, before = self.state, {workload: self.pods_by_node(workload) for workload in workloads}
        checkpoint = state.begin()
        for workload in workloads:
            for pod in self.movable[workload].pods:
                state.remove_pod(pod)
            state.release_workload(workload)
        # After the workloads are out, so that the room that they leave is closed too.
        self._close([*domains, *np.flatnonzero(whole).tolist()])
        # What is hard to place goes first: amounts, in relation to nothing, as the engine orders pod sets.
        amounts = {
            name: sum(sum(pod_set.requests.values()) * pod_set.count for pod_set in self.movable[name].pod_sets)
            for name in workloads
        }
        largest_first = sorted(workloads, key=lambda name: (-amounts[name], name))
        fits = all(self._place_workload(workload, before[workload]) for workload in largest_first)
        # Before the verdict: a step that is kept must not keep the closed domains.
        state.release_workload(CLOSED)
        now = self.whole_mask() if fits else whole
        gained = np.flatnonzero(now & ~whole).tolist()
        if not fits or int(now.sum()) <= int(whole.sum()) or not set(domains) <= set(gained):
            state.rollback(checkpoint)
            return None
        state.commit(checkpoint)
        moves = tuple(
            DefragMove(
                name, one.count, one.priority, before[name], self.pods_by_node(name), self.nodes_of_workload(name)
            )
            for name, one in ((name, self.movable[name]) for name in largest_first)
        )
        return DefragStep(moves, tuple(self.tree.path(min(self.rank, self.tree.last), domain) for domain in gained))

    def _place_workload(self, workload: str, before: Collection[str]) -> bool:
        one = self.movable[workload]
        pod_sets = tuple([off(pod_set, before) for pod_set in one.pod_sets]) if one.as_one else one.pod_sets
        found = place(self.state, WorkloadRequest(workload, pod_sets, one.flavors))
        if isinstance(found, Refusal):
            return False
        self.state.reserve(workload, found.assignments)
        return True

    def _close(self, domains: Collection[int]) -> None:
        """Let nobody into these domains."""
        leaves = np.flatnonzero(np.isin(self.owner, list(domains)))
        free = self.state.cluster.table.free[0][self.tree.columns_of_leaves(leaves)]
        leaves, free = leaves[free > 0], free[free > 0]
        if len(leaves):
            topology = TopologyRequest(policy=Policy.UNCONSTRAINED)
            # Every pod takes one of `pods` on its node, so a node without any left is closed to all.
            pods = PodSet(name="closed", count=int(free.sum()), requests={PODS: 1}, topology=topology)
            self.state.reserve(CLOSED, [Assignment.packed(pods, self.tree, leaves, free, int(free.sum()))])

    def take_best_step(self, tried: set[int]) -> DefragStep | None:
        """The step that frees domains for the fewest pods each; it is taken. ``tried``: in vain, are passed.

        Domains are looked at in the order of what they could cost at best, until that is no less than what was found.
        """
        whole, tenants = self.whole_mask(), self.tenants()
        # (pods to move for each domain that they could free at most, who of them was moved before, the domain)
        costs: list[tuple[float, int, int]] = []
        for domain, names in tenants.items():
            pods = sum(self.movable[name].count for name in names)
            nodes = (node for name in names for node in self.pods_by_node(name) if node in self.leaf)
            most = len({int(self.owner[self.leaf[node]]) for node in nodes})
            costs.append((pods / max(most, 1), len(self.moved.intersection(names)), domain))
        found: tuple[float, int, int] | None = None
        for least, again, domain in sorted(costs):
            if domain in tried:
                continue
            # The domains come in the order of what they cost at best, so none behind this one is cheaper.
            if found is not None and least >= found[0]:
                break
            step = self._try_step((domain,), tenants[domain], whole)
            if step is None:
                tried.add(domain)
            elif found is None or (step.pods / len(step.freed), again, domain) < found:
                found = (step.pods / len(step.freed), again, domain)
        if found is None:
            return None
        domain = found[2]
        self.moved.update(tenants[domain])
        # Tried above in a transaction that was rolled back; now it is done, and the next step begins from there.
        return self.empty((domain,), tenants[domain], whole)

    def greedy(self) -> list[DefragStep]:
        """Step after step until there is none; those that failed are tried once more at the end, in the new room."""
        steps: list[DefragStep] = []
        tried: set[int] = set()
        again = True
        while again:
            again = False
            while (step := self.take_best_step(tried)) is not None:
                steps.append(step)
                again = True
            tried.clear()
        return steps

    def at_once(self, gained: int, pods: int) -> DefragStep | None:
        """One step that frees more than ``gained`` domains, the most there is, or as many for fewer than ``pods``.

        None where there is none, or too many domains to try all sets of them.
        Leaves the state as it was.
        """
        tenants, whole = self.tenants(), self.whole_mask()
        if not 1 < len(tenants) <= ALL_SETS:
            return None
        for size in range(len(tenants), max(gained, 1) - 1, -1):
            steps = (
                self._try_step(domains, sorted({name for domain in domains for name in tenants[domain]}), whole)
                for domains in combinations(sorted(tenants), size)
            )
            found = [step for step in steps if step is not None]
            best = min(found, key=lambda step: (-len(step.freed), step.pods), default=None)
            if best is not None and (-len(best.freed), best.pods) < (-gained, pods):
                return best
        return None

    def _try_step(self, domains: Collection[int], workloads: Collection[str], whole: Mask) -> DefragStep | None:
        """The step that empties these domains of these workloads; the state is left as it was."""
        checkpoint = self.state.begin()
        step = self.empty(domains, workloads, whole)
        self.state.rollback(checkpoint)
        return step


def defrag(
    state: ClusterState, flavor: str, level: str, movable: Mapping[str, Movable], stays: Collection[str] = ()
) -> DefragPlan:
    """A plan for one level of a flavor. ``stays``: names of nodes with something on them that is not moved.

    Raises:
        ValueError: there is no such flavor or level, or the flavor has no node.
    """
    tree = state.tree(flavor)
    rank = tree.rank_of_level(level) if tree is not None else None
    if tree is None or rank is None or not tree.size:
        raise ValueError(f"flavor {flavor} has no level {level}, or no node")
    fixed = np.array([name in stays for name in tree.names], bool)
    search = _Search(state, tree, rank, movable, fixed)
    before = int(search.whole_mask().sum())
    checkpoint = state.begin()
    try:
        steps = search.greedy()
    finally:
        state.rollback(checkpoint)
    # From the state as it was, like the greedy plan: the two are compared as wholes.
    better = search.at_once(sum(len(step.freed) for step in steps), sum(step.pods for step in steps))
    steps = [better] if better is not None else steps
    return DefragPlan(
        level, tree.count_domains(rank), (before, before + sum(len(step.freed) for step in steps)), tuple(steps)
    )
