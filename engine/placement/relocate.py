"""Other places for pods that run: some slots of a pod set go elsewhere, and the others stay where they are.

Rules
- What is free counts as it is now: the slots that go are theirs until their pods are gone, so nothing is promised
  twice, and no slot goes to a node that others of the pod set leave.
- `gather` brings a pod set that prefers a level, and is spread, into one domain: of the preferred level, else of the
  narrowest wider one that will do. Those stay that are there already; where no domain that it uses has room for the
  rest, all of it goes to another one.
- Never worse: a pod set has no more domains than before, of any level down to the one that it asks for.
- Pod sets whose ranks belong together, in slices or in one domain with each other, go all at once (`away`), to none of
  the nodes where they are: then their new slots are in rank order, and no pod is taken for one that is there already.

Nothing here changes the state.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from engine.cluster.assignment import Assignment, Slice, with_slices
from engine.cluster.levels import domain_labels
from engine.cluster.natural_order import natural
from engine.cluster.state import ClusterState
from engine.cluster.tree import Path
from engine.model import LabelRequirement, NodeTerm, PodSet, Policy
from engine.placement.place import place
from engine.placement.resize import cut, grown, held_of
from engine.reasons import Reason
from engine.results import Refusal, WorkloadRequest

ANY_NODE: Mapping[str, Collection[str]] = {}
WIDER = "there is only room in more domains than it uses now"
MOST_DOMAINS = 4  # of those that a pod set uses, so many are tried: the ones with most of its pods


def relocate(
    state: ClusterState,
    workload: str,
    pod_set: PodSet,
    gone: Mapping[Path, int],
    *,
    only: Collection[str] | None = None,
) -> Assignment | Refusal:
    """The whole new assignment with so many slots of some slices elsewhere; ``gone``: by values of the slice.

    ``only``: the nodes to which they may go; None: any. Raises ValueError where the workload holds no such pod set.
    """
    held = held_of(state, workload, pod_set.name)
    stays: list[Slice] = []
    left: list[Slice] = []
    for part in held.slices:
        less = min(part.count, gone.get(part.values, 0))
        if part.count > less:
            stays.append(cut(part, part.count - less))
        if less:
            left.append(Slice(part.values, less, part.nodes))
    lost = {name for part in left for name, _ in part.nodes}
    wanted = _restrict_nodes(off(pod_set, lost), only)
    found: Assignment | Refusal
    if stays:
        found = grown(state, held, stays, wanted, sum(part.count for part in left), frozenset(lost))
    else:
        alone = msgspec.structs.replace(wanted, count=held.count)
        placed = place(state, WorkloadRequest(workload, (alone,), (held.flavor,)))
        found = placed if isinstance(placed, Refusal) else placed.assignments[0]
    if isinstance(found, Refusal):
        return found
    # `grown` goes to wider domains where the narrow ones are full: such a move would spread the pods.
    if uses_more_domains(held, found, pod_set):
        return Refusal(Reason.DOES_NOT_FIT, WIDER, pod_set.name, held.flavor)
    return with_slices(held, found.slices)  # made for the pod set as it is


def gather(state: ClusterState, workload: str, pod_set: PodSet) -> Assignment | None:
    """The pod set in one domain, where it is spread over several; None where it is together, or there is no room."""
    held = held_of(state, workload, pod_set.name)
    topology = pod_set.topology
    if topology.policy is not Policy.PREFERRED or topology.level not in held.levels:
        return None
    # From the preferred level outwards, and no further than to a level at which the pods are together already.
    for depth in range(held.levels.index(topology.level), -1, -1):
        own = Counter[Path]()
        for part in held.slices:
            own[part.values[: depth + 1]] += part.count
        if len(own) <= 1:
            return None
        for found in _gathered(state, workload, pod_set, held, own):
            if not isinstance(found, Refusal):
                return found
    return None


def away(
    state: ClusterState, workload: str, pod_sets: Sequence[PodSet], only: Mapping[str, Collection[str]] = ANY_NODE
) -> tuple[Assignment, ...] | Refusal:
    """All slots of these pod sets on other nodes, placed as they ask for; all of one flavor.

    ``only``: by pod set, the nodes to which they may go; absent: any. Raises ValueError where the workload holds no
    such pod set.
    """
    held = [held_of(state, workload, pod_set.name) for pod_set in pod_sets]
    left = {name for part in held for piece in part.slices for name, _ in piece.nodes}
    wanted = [
        _restrict_nodes(msgspec.structs.replace(off(pod_set, left), count=part.count), only.get(pod_set.name))
        for pod_set, part in zip(pod_sets, held, strict=True)
    ]
    flavors = tuple(dict.fromkeys(part.flavor for part in held))
    if len(flavors) > 1:
        # `place` takes one list of flavors for all, so a pod set could end in another flavor than it was admitted to.
        return Refusal(Reason.UNSUPPORTED_CONSTRAINT, "its pod sets are in several flavors", pod_sets[0].name)
    placed = place(state, WorkloadRequest(workload, tuple(wanted), flavors))
    if isinstance(placed, Refusal):
        return placed
    made: list[Assignment] = []
    here = {piece.values for part in held for piece in part.slices}  # where a slot is more than a node, it has others
    for before, after, pod_set in zip(held, placed.assignments, pod_sets, strict=True):
        if uses_more_domains(before, after, pod_set) or not here.isdisjoint(piece.values for piece in after.slices):
            return Refusal(Reason.DOES_NOT_FIT, WIDER, pod_set.name, before.flavor)
        made.append(with_slices(before, after.slices))
    return tuple(made)


def gather_all(state: ClusterState, workload: str, pod_sets: Sequence[PodSet]) -> tuple[Assignment, ...] | None:
    """Pod sets whose ranks belong together in fewer domains, all at once; None as of `gather`.

    Those that share a domain are as far apart as all of their pods are.
    """
    held = {pod_set.name: held_of(state, workload, pod_set.name) for pod_set in pod_sets}
    for depth in range(max(map(len, (part.levels for part in held.values())), default=0) - 1, -1, -1):
        used: dict[str, set[Path]] = {}
        for pod_set in pod_sets:
            unit = pod_set.group or f"pod set {pod_set.name}"
            used.setdefault(unit, set()).update(part.values[: depth + 1] for part in held[pod_set.name].slices)
        wanted, apart = list(pod_sets), False
        for at, pod_set in enumerate(pod_sets):
            levels, topology = held[pod_set.name].levels, pod_set.topology
            if topology.policy is not Policy.PREFERRED or topology.level not in levels[depth:]:
                continue
            apart |= len(used[pod_set.group or f"pod set {pod_set.name}"]) > 1
            required = msgspec.structs.replace(topology, policy=Policy.REQUIRED, level=levels[depth])
            wanted[at] = msgspec.structs.replace(pod_set, topology=required)
        if not apart:
            continue
        found = away(state, workload, wanted)
        if isinstance(found, Refusal):
            continue
        if not any(
            uses_more_domains(held[one.pod_set], one, asked) for one, asked in zip(found, pod_sets, strict=True)
        ):
            return found
    return None


def spread(held: Assignment, level: str | None) -> tuple[int, ...]:
    """How many domains of each level it uses, from the widest down to ``level``; None: of none."""
    depths = range(held.levels.index(level) + 1 if level in held.levels else 0)
    return tuple([len({part.values[: depth + 1] for part in held.slices}) for depth in depths])


def uses_more_domains(before: Assignment, after: Assignment, pod_set: PodSet) -> bool:
    """Whether the pod set uses more domains than before, of a level down to the one that it asks for."""
    level = pod_set.topology.level
    counts = zip(spread(before, level), spread(after, level), strict=True)
    return any(now > then for then, now in counts)


def _gathered(
    state: ClusterState, workload: str, pod_set: PodSet, held: Assignment, own: Counter[Path]
) -> Iterator[Assignment | Refusal]:
    """All of it in each domain that it uses, those with most of its pods first; then in one that it does not use."""
    most_first = sorted(own, key=lambda path: (-own[path], [natural(value) for value in path]))
    depth = len(most_first[0])
    for path in most_first[:MOST_DOMAINS]:
        gone = {part.values: part.count for part in held.slices if part.values[:depth] != path}
        inside = domain_labels(held.levels, path)
        # The selector keeps the pods that go inside the domain; `relocate` gives the new slots to the pod set as it is.
        narrowed = msgspec.structs.replace(pod_set, node_selector=pod_set.node_selector | inside)
        yield relocate(state, workload, narrowed, gone)
    # Required for this search alone: what is stored afterwards are the new slots, not this request.
    topology = msgspec.structs.replace(pod_set.topology, policy=Policy.REQUIRED, level=held.levels[depth - 1])
    required = msgspec.structs.replace(pod_set, topology=topology)
    found = relocate(state, workload, required, {part.values: part.count for part in held.slices})
    worse = isinstance(found, Assignment) and uses_more_domains(held, found, pod_set)
    yield Refusal(Reason.DOES_NOT_FIT, "", pod_set.name, held.flavor) if worse else found


def off(pod_set: PodSet, nodes: Collection[str]) -> PodSet:
    """The pod set as one that may go to none of these nodes."""
    if not nodes:
        return pod_set
    return _narrowed(pod_set, LabelRequirement(key="metadata.name", operator="NotIn", values=tuple(sorted(nodes))))


def _restrict_nodes(pod_set: PodSet, only: Collection[str] | None) -> PodSet:
    if only is None:
        return pod_set
    return _narrowed(pod_set, LabelRequirement(key="metadata.name", operator="In", values=tuple(sorted(only))))


def _narrowed(pod_set: PodSet, field: LabelRequirement) -> PodSet:
    """The pod set where this holds too. A term without requirements matches nothing, and stays so."""
    terms = pod_set.node_affinity
    if terms is None:
        return msgspec.structs.replace(pod_set, node_affinity=(NodeTerm(fields=(field,)),))
    more = tuple(
        NodeTerm(labels=term.labels, fields=(*term.fields, field)) if term.labels or term.fields else term
        for term in terms
    )
    return msgspec.structs.replace(pod_set, node_affinity=more)
