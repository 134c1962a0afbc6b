"""Which flavors a workload may be given, and placing it in them: quota and topology are one decision.

An *option* is a flavor for every resource of every pod set. Options are tried in the order of the queue's flavors, the
first pod set's first. A flavor is none for pods that do not tolerate its taints. Of the flavors of one pod set at most
one has a topology; the others count quota, and their node labels become part of the pod set's node selector.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice, product
from typing import Final

import msgspec
from msgspec.structs import replace

from engine.cluster.assignment import Assignment
from engine.cluster.filters import tolerates
from engine.cluster.state import ClusterState
from engine.model import Amounts, PodSet, Policy
from engine.placement.beyond_nodes import beyond_every_node
from engine.placement.place import place
from engine.reasons import Reason
from engine.reservation_key import HolderKey, ReservationKey
from engine.results import Placement, Refusal, WorkloadRequest
from queueing.model import AUTO, ClusterQueue, PlainFlavor, Quantities, Workload, asks_of, digest, plain, usage

MOST_OPTIONS: Final = 64
KEEPS_OUT: Final = ("NoSchedule", "NoExecute")

Chosen = tuple[tuple[str, str], ...]  # (resource, flavor)


class FlavorAssignment(msgspec.Struct, dict=True):
    """A flavor for every resource of every pod set.

    ``flavors``: by pod set, resource -> flavor. ``amounts``: what quota that takes. ``parts``: (flavor with a topology,
    the pod sets that go there); pod sets without such a flavor are not placed. ``beyond``: where a pod asks for more
    than is counted (`PodSet.cut`), what its pods ask for.
    """

    flavors: Mapping[str, Mapping[str, str]]
    amounts: Quantities
    parts: tuple[tuple[str, tuple[PodSet, ...]], ...]
    beyond: Quantities = msgspec.field(default_factory=dict)

    @property
    def asked(self) -> Quantities:
        """What is asked for of quota; it takes no more than ``amounts``."""
        return {**self.amounts, **self.beyond} if self.beyond else self.amounts

    @property
    def rooms(self) -> tuple[str, ...]:
        """The flavors whose nodes it needs."""
        return tuple(flavor for flavor, _ in self.parts)

    @cached_property
    def request(self) -> bytes:
        """Equal for options that the engine answers alike."""
        return digest([(room, [plain(p) for p in pod_sets]) for room, pod_sets in self.parts])


class FlavorAssignments(msgspec.Struct, frozen=True):
    """The options of one workload in one queue, and why other flavors are none."""

    found: tuple[FlavorAssignment, ...]
    refusal: Refusal | None = None


class _Choice(msgspec.Struct):
    flavors: Chosen
    room: str  # the flavor with a topology, or ""
    pod_set: PodSet  # with the level that was resolved


class _Finder(msgspec.Struct):
    state: ClusterState
    queue: ClusterQueue
    plain: Mapping[str, PlainFlavor]
    asks: Mapping[str, Amounts]  # by pod set, what one of its pods takes of quota
    wrong: list[str] = msgspec.field(default_factory=list)
    reason: Reason = Reason.NO_FLAVOR

    def choices(self, pod_set: PodSet) -> Iterator[_Choice]:
        """What one pod set may be given."""
        asks = self.asks[pod_set.name]
        # Every pod is one of ``pods``, so a group for that resource is used also by pods that ask for nothing.
        asked = {"pods": 1, **asks}
        groups = [(g, [r for r in g.resources if asked.get(r, 0) > 0]) for g in self.queue.groups]
        covered = {resource for _, resources in groups for resource in resources}
        # A queue without quota for ``pods`` does not limit them; any
        # other resource without quota would be taken for nothing.
        lacking = sorted(r for r, amount in asks.items() if amount > 0 and r not in covered and r != "pods")
        if lacking:
            self.reason = Reason.NO_QUOTA
            text = f"cluster queue {self.queue.name} has no quota for {', '.join(lacking)}"
            beyond = beyond_every_node(self.state, pod_set)
            self.wrong.append(f"{beyond}. Beside that, {text}" if beyond else text)
            return
        used = [(group, resources) for group, resources in groups if resources]
        # It asks for a topology and for no resource with quota: the first group's flavors are the only way to nodes.
        if not used and _needs_topology(pod_set):
            used = [(group, []) for group, _ in groups[:1]]
        # A product of what administrators and tenants write; bounded, or one pod set could stop the cycle.
        for flavors in islice(product(*(group.flavors for group, _ in used)), MOST_OPTIONS):
            names = [quotas.flavor for quotas in flavors]
            pairs = zip(names, used, strict=True)
            chosen = tuple((resource, name) for name, (_, resources) in pairs for resource in resources)
            choice = self.choice(pod_set, names, chosen)
            if choice is not None:
                yield choice

    def choice(self, pod_set: PodSet, names: Sequence[str], chosen: Chosen) -> _Choice | None:
        """One combination of flavors; None where it is impossible whatever is free."""
        rooms = [name for name in dict.fromkeys(names) if name in self.state.flavors]
        # Two trees of nodes have no slots in common.
        if len(rooms) > 1:
            self.wrong.append(f"flavors {' and '.join(rooms)} both have a topology; a pod set can be in one only")
            return None
        labels: dict[str, str] = {}
        for name in dict.fromkeys(names):
            if name in rooms:
                continue
            if name not in self.plain:
                self.wrong.append(f"there is no ResourceFlavor {name}")
                return None
            labels |= self.plain[name].node_labels
        if wrong := self._excluded(pod_set, names, labels):
            self.wrong.append(wrong)
            return None
        if labels:
            pod_set = msgspec.structs.replace(pod_set, node_selector=pod_set.node_selector | labels)
        return (
            self._choose_in_room(pod_set, rooms[0], chosen)
            if rooms
            else self._choose_without_topology(pod_set, names, chosen)
        )

    def _choose_without_topology(self, pod_set: PodSet, names: Sequence[str], chosen: Chosen) -> _Choice | None:
        """A choice without a topology: pods go anywhere, and nothing but quota is counted.

        So are extended resources, whether device plugins or devices of claims give them.
        """
        if (asked := pod_set.devices) is not None and (asked.named or asked.claims):
            self.reason = Reason.RESOURCE_CLAIMS_NOT_COUNTED
            self.wrong.append(f"flavor {', '.join(names)} has no topology, so devices of resource claims do not count")
            return None
        if _needs_topology(pod_set):
            self.wrong.append(f"flavor {', '.join(names) or 'of no name'} has no topology")
            return None
        return _Choice(chosen, "", pod_set)

    def _excluded(self, pod_set: PodSet, names: Sequence[str], labels: Mapping[str, str]) -> str:
        """Why pods cannot go to nodes of these flavors, which have these labels; "" where they can."""
        clash = [key for key, value in pod_set.node_selector.items() if labels.get(key, value) != value]
        if clash:
            return f"flavor {', '.join(names)} has another {clash[0]} than the pods' node selector"
        for name in dict.fromkeys(names):
            flavor = self.state.flavors.get(name) or self.plain[name]
            # A flavor's tolerations are given to its pods at admission, so they count here.
            tolerations = pod_set.tolerations + flavor.tolerations
            taints = (taint for taint in flavor.taints if taint.effect in KEEPS_OUT)
            taint = next((taint for taint in taints if not tolerates(tolerations, taint)), None)
            if taint is not None:
                text = f"{taint.key}={taint.value}" if taint.value else taint.key
                return f"flavor {name} has the taint {text}:{taint.effect}, which the pods do not tolerate"
        return ""

    def _choose_in_room(self, pod_set: PodSet, room: str, chosen: Chosen) -> _Choice | None:
        levels, topology = self.state.flavors[room].levels, pod_set.topology
        if topology.level == AUTO:
            topology = msgspec.structs.replace(topology, level=levels[-1])
            pod_set = msgspec.structs.replace(pod_set, topology=topology)
        wanted = (topology.level, *(part.level for part in topology.slices), *topology.limited_levels)
        missing = [level for level in wanted if level is not None and level not in levels]
        if missing:
            self.reason = Reason.UNKNOWN_LEVEL
            self.wrong.append(f"flavor {room} has no level {missing[0]}; its levels are {', '.join(levels)}")
            return None
        return _Choice(chosen, room, pod_set)


def options(
    state: ClusterState, queue: ClusterQueue, plain: Mapping[str, PlainFlavor], workload: Workload
) -> FlavorAssignments:
    """All options in the order in which they are tried, at most ``MOST_OPTIONS``."""
    asks = asks_of(workload)
    finder = _Finder(state, queue, plain, asks)
    pod_sets = [pod_set for pod_set in workload.pod_sets if pod_set.count > 0]
    if queue.unlimited:
        each = [[*_unlimited(finder, pod_set)] for pod_set in pod_sets]
    else:
        each = [[*finder.choices(pod_set)] for pod_set in pod_sets]
    # Two bounds: of combinations that are looked at, since most may fail to unite groups, and of options that are kept.
    together = (choices for choices in islice(product(*each), 4096) if _united(choices))
    found = tuple(_option(choices, asks) for choices in islice(together, MOST_OPTIONS))
    if found:
        return FlavorAssignments(found)
    text = "; ".join(dict.fromkeys(finder.wrong)) or "the pod sets of one group have no flavor in common"
    return FlavorAssignments((), Refusal(finder.reason, text))


def _unlimited(finder: _Finder, pod_set: PodSet) -> Iterator[_Choice]:
    for name in sorted(finder.state.flavors):
        choice = finder.choice(pod_set, [name], ())
        if choice is not None:
            yield choice
    if not finder.state.flavors:
        finder.wrong.append("no ResourceFlavor has a topology")


def _needs_topology(pod_set: PodSet) -> bool:
    """Whether it needs a topology. That slices are to be alone is seen to by others where there is none."""
    topology = pod_set.topology
    return topology.policy is not Policy.UNCONSTRAINED or not all(part.alone for part in topology.slices)


def _united(choices: Sequence[_Choice]) -> bool:
    """Whether pod sets of one group are in one flavor."""
    rooms: dict[str, str] = {}
    return all(
        rooms.setdefault(choice.pod_set.group, choice.room) == choice.room for choice in choices if choice.pod_set.group
    )


def _option(choices: Sequence[_Choice], asks: Mapping[str, Amounts]) -> FlavorAssignment:
    amounts: Quantities = {}
    parts: dict[str, list[PodSet]] = {}
    more: Quantities = {}
    for choice in choices:
        takes = usage(asks[choice.pod_set.name], choice.pod_set.count)
        for resource, flavor in choice.flavors:
            amounts[flavor, resource] = amounts.get((flavor, resource), 0) + takes[resource]
            # Amounts are cut where a pod asks for more than can be
            # counted; the whole ask is judged, or it would slip in.
            if (each := choice.pod_set.cut.get(resource, 0)) * choice.pod_set.count > takes[resource]:
                above = each * choice.pod_set.count - takes[resource]
                more[flavor, resource] = more.get((flavor, resource), 0) + above
        if choice.room:
            parts.setdefault(choice.room, []).append(choice.pod_set)
    flavors = {choice.pod_set.name: dict(choice.flavors) for choice in choices}
    beyond = {key: amounts[key] + above for key, above in more.items()}
    return FlavorAssignment(flavors, amounts, tuple((room, tuple(sets)) for room, sets in parts.items()), beyond)


def put(state: ClusterState, key: HolderKey, option: FlavorAssignment) -> tuple[Assignment, ...] | Refusal:
    """Place all pod sets of an option, or say why one of them cannot be. Changes nothing."""
    if not option.parts:
        return ()
    if len(option.parts) == 1:
        flavor, pod_sets = option.parts[0]
        found = place(state, WorkloadRequest(key, pod_sets, (flavor,)))
        return found.assignments if isinstance(found, Placement) else found
    assignments: list[Assignment] = []
    checkpoint = state.begin()
    try:
        for number, (flavor, pod_sets) in enumerate(option.parts):
            found = place(state, WorkloadRequest(key, pod_sets, (flavor,)))
            if isinstance(found, Refusal):
                return found
            # Flavors may share nodes: what one part takes there the next one must not find free.
            state.reserve(ReservationKey.for_trial(key, "put", str(number)), found.assignments)
            assignments += found.assignments
    finally:
        state.rollback(checkpoint)
    return tuple(assignments)


def prefixes(option: FlavorAssignment) -> Iterator[FlavorAssignment]:
    """The option with its first pod set alone, with its first two, and so on."""
    done: list[tuple[str, tuple[PodSet, ...]]] = []
    for flavor, pod_sets in option.parts:
        for count in range(1, len(pod_sets) + 1):
            yield replace(option, parts=(*done, (flavor, pod_sets[:count])))
        done.append((flavor, pod_sets))


def scaled(workload: Workload, counts: Mapping[str, int]) -> Workload:
    """The workload with other numbers of pods."""
    pod_sets = tuple(
        msgspec.structs.replace(pod_set, count=counts.get(pod_set.name, pod_set.count)) for pod_set in workload.pod_sets
    )
    return msgspec.structs.replace(workload, pod_sets=pod_sets)
