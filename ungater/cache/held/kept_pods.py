"""The pods of a pod set that run and are to keep their places, and whether all that is asked of those places holds."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from crds.admitted_quota import AdmittedQuota
from engine.cluster.assignment import Assignment, Slice
from engine.cluster.natural_order import natural
from engine.cluster.state import ClusterState
from engine.cluster.tree import Path
from engine.model import PODS, Amounts, Flavor, PodSet, Policy
from engine.reservation_key import HolderKey
from kube.objects import Pod, key
from queueing.model import at_least
from ungater.model.job_view import PodSetView
from ungater.model.pod_slots import PodSetSlots, finished, is_gated
from ungater.model.workload_entry import WorkloadEntry


class KeptPods(msgspec.Struct, frozen=True):
    """Pods, by which quota they run and what none of them takes more than. ``flavor``: None where they have none.

    ``asks``: of its node, ``charged``: of quota.
    """

    pod_set: PodSetView
    pods: tuple[Pod, ...]
    quota: AdmittedQuota | None
    flavor: Flavor | None
    asks: Amounts
    charged: Amounts

    @property
    def name(self) -> str:
        """Of its flavor; "" where it has none."""
        return self.flavor.name if self.flavor is not None else ""

    @property
    def levels(self) -> tuple[str, ...]:
        """Of its flavor, the widest first."""
        return self.flavor.levels if self.flavor is not None else ()

    def place_of_pod(self, pod: Pod) -> Path:
        """Where a pod says that it was sent."""
        return tuple((pod.spec.node_selector or {}).get(level, "") for level in self.levels)

    def slices(self) -> tuple[Slice, ...]:
        """Where they are, in tree order."""
        counts = Counter(map(self.place_of_pod, self.pods))
        return tuple(Slice(path, counts[path]) for path in sorted(counts, key=lambda one: [*map(natural, one)]))

    def assignment(self, wish: PodSet) -> Assignment:
        """The same as the engine takes it back."""
        return Assignment(
            pod_set=wish.name,
            flavor=self.name,
            levels=self.levels,
            requests=self.asks,
            slices=self.slices(),
            source=wish,
        )


def grows(entry: WorkloadEntry) -> bool:
    """Whether its pods run on where others of them have no place: nobody suspends it while it waits."""
    return not (entry.job.queue and entry.job.suspendable)


def are_inside(kept: KeptPods, slots: PodSetSlots) -> bool:
    """Whether the pods are in these slots, no more in one than it takes."""
    counts = {slot.values: slot.count for slot in slots.slots}
    return all(piece.count <= counts.get(piece.values, 0) for piece in kept.slices())


def runs(entry: WorkloadEntry, gate: str) -> bool:
    """Whether any of its pods runs, and nobody has asked it to go."""
    return any(
        pod.spec.node_name and not is_gated(pod, gate) and not finished(pod) and not pod.metadata.deletion_timestamp
        for pod in entry.pods.values()
    )


def are_together(kept: Sequence[KeptPods], wished: Mapping[str, PodSet], parts: Mapping[str, Assignment]) -> bool:
    """Whether all pods are together that have to be: in a required domain, in one for several pod sets, in slices."""
    domains: dict[tuple[str, str], set[Path]] = {}
    for one in kept:
        wish, part = wished.get(one.pod_set.name), parts.get(one.pod_set.name)
        if wish is None or part is None:
            continue
        if not _sliced(one, wish, part):
            return False
        required = wish.topology.level if wish.topology.policy is Policy.REQUIRED else None
        for whose, level in ((wish.group or f"pod set {wish.name}", required), ("all", one.pod_set.shared)):
            if level in one.levels:
                depth = one.levels.index(level) + 1
                domains.setdefault((whose, level), set()).update(piece.values[:depth] for piece in part.slices)
    return all(len(found) == 1 for found in domains.values())


def _sliced(kept: KeptPods, wish: PodSet, part: Assignment) -> bool:
    """Whether the slices of a pod set are whole, but for the last one of one layer, and each in one domain."""
    layers = wish.topology.slices
    for layer in layers:
        if layer.level not in kept.levels:
            return False
        depth = kept.levels.index(layer.level) + 1
        counts: dict[Path, int] = {}
        for piece in part.slices:
            counts[piece.values[:depth]] = counts.get(piece.values[:depth], 0) + piece.count
        broken = [count % layer.size for count in counts.values() if count % layer.size]
        tail = [] if len(layers) > 1 or layer.alone else [wish.count % layer.size]
        if (broken and broken != tail) or (layer.alone and max(counts.values(), default=0) > layer.size):
            return False
        homes: dict[int, Path] = {}
        for pod in kept.pods:
            rank, domain = kept.pod_set.rank_of_pod(pod), kept.place_of_pod(pod)[:depth]
            # Whole slices are not enough: ranks that belong together have to be in one of them.
            if rank is not None and homes.setdefault(rank // layer.size, domain) != domain:
                return False
    return True


def claim_slots(state: ClusterState, workload: HolderKey, pod_set: str, pods: Iterable[Pod]) -> None:
    """Have the pods fill the slots that are held for them, and not be charged beside those."""
    for pod in pods:
        charged = state.pods.get(key(pod))
        if charged is None:
            continue
        if pod.spec.node_name:
            state.set_pod(msgspec.structs.replace(charged, claim=(workload, pod_set)))
        else:
            state.remove_pod(charged.key)


def has_room(state: ClusterState, parts: Collection[Assignment]) -> bool:
    """Whether all are on nodes that there are, and none is short."""
    return all(piece.nodes for part in parts for piece in part.slices) and all(
        state.free_on_node(name).get(resource, 0) >= 0
        for part in parts
        for piece in part.slices
        for name, _ in piece.nodes
        for resource in {PODS, *part.requests}
    )


def largest_amounts(takes: Iterable[Amounts]) -> Amounts:
    """What none of these pods takes more than."""
    found: Amounts = {}
    for one in takes:
        found = at_least(found, one)
    return found
