"""Other places for pods that run (`queueing.moves`), asked of the engine, and whether their pods may go. Pure.

Rules
- Only who is steady is moved: every pod runs in its slot and is ready, and nothing else is about to happen.
- Only pods that somebody makes anew: those of Jobs, StatefulSets and ReplicaSets. None that says that it is not safe to
  evict, or may take more than ten minutes to stop: it would hold two places for so long.
- Only of owners that say how many pods they have. Else a successor beside a pod that still ends would count as growth,
  and one that is not made yet as fewer pods. ReplicaSets and StatefulSets need not say it; their pods are counted one
  for one meanwhile (`ungater.reconcile.moves.one_for_one`).
- Budgets that would not let all of them go now forbid it.
- Room that is kept for somebody who waits is not used.
- Who goes as a whole (`ungater.reconcile.moves.as_one`) has room for all of it elsewhere before one of its pods goes.
"""

from collections.abc import Callable, Collection, Iterable, Mapping

from engine.cluster.assignment import Assignment, slots_removed
from engine.cluster.tree import Path
from engine.model import PodSet, Policy
from engine.placement.relocate import away, gather, gather_all, relocate
from engine.results import Refusal
from kube.objects import Pod, controller_of, is_true, key
from queueing import moves
from queueing.making_room import Going
from queueing.queues.entry import AssumedAdmission
from ungater.cache.cache import Cache
from ungater.model import conditions
from ungater.model.job_view import REPLICA_SET, PodSetView
from ungater.model.pod_slots import finished, is_gated
from ungater.model.workload_entry import ObservedWorkload, WorkloadEntry
from ungater.reconcile.moves import as_one, movable
from ungater.reconcile.partial_eviction import SAFE_TO_EVICT
from ungater.scheduling.replacement import pod_set_in

MADE_ANEW = frozenset({("Job", "batch/v1"), ("StatefulSet", "apps/v1")})  # controllers; others may be called so too
MOST_GRACE = 600  # seconds
DEFAULT_GRACE = 30  # what Kubernetes gives a pod that does not say

Gone = Mapping[Path, int]  # slots that are left, by values of their slice
Found = Assignment | Refusal | None
Search = Callable[[PodSetView, PodSet, Assignment], Found]


def why_not_relocated(cache: Cache, entry: WorkloadEntry) -> str:
    """Why a workload is not moved now; "" where it may be."""
    observed = entry.observed
    if observed is None or entry.admission is None or entry.grant is None or not entry.slots_in or entry.job.over:
        return "it holds no slots"
    # A patch on its way may let a pod go to a slot that this move would leave.
    if entry.writes.busy or entry.writes.patches or entry.closing or entry.evict is not None or entry.lost:
        return "its places are changing"
    if is_true(observed.conditions, conditions.EVICTED) or not observed.active:
        return "it is being evicted"
    if not movable(entry):
        return f"a {entry.job.kind} like this replaces its pods in a way that allows no move"
    return _hindered(cache, entry, observed)


def _hindered(cache: Cache, entry: WorkloadEntry, observed: ObservedWorkload) -> str:
    if is_true(observed.conditions, conditions.MOVING):
        return "it is moved already"
    if cache.device_claims.has_claims(entry):
        return "its pods have devices of resource claims, and such pods are not moved"
    if entry.job.whole and _has_fellows(cache, entry):
        return "its PodGroup has pods of others too, and all pods of a group move together"
    if cache.device_claims.device_hindrance(entry) is not None:
        return "its pods have devices that are not counted, and would wait elsewhere"
    if not _steady(cache, entry):
        return "not all of its pods run in their slots and are ready"
    return moves.why_not_moved(cache.queues, entry.key)


def _has_fellows(cache: Cache, entry: WorkloadEntry) -> bool:
    """Whether others' pods are in a native PodGroup of its pods."""
    groups = dict.fromkeys(pod.spec.pod_group for pod in entry.pods.values() if pod.spec.pod_group)
    # By the index of all pods: those of other owners are in no entry of this workload.
    keys = (f"{entry.job.namespace}/{name}" for name in groups)
    named = (pod for key in keys for pod in cache.stores.pods_in_group(key))
    return any(pod.metadata.uid not in entry.pods and not finished(pod) for pod in named)


def _steady(cache: Cache, entry: WorkloadEntry) -> bool:
    job = entry.job
    if job.suspended or job.ready < job.count or entry.left or entry.growing:
        return False
    for pod in entry.pods.values():
        slots = entry.slots_of(pod)
        if finished(pod):
            continue
        gone = pod.metadata.deletion_timestamp is not None or is_gated(pod, cache.keys.gate) or not pod.spec.node_name
        if gone or slots is None or slots.of_selector(pod.spec.node_selector) is None:
            return False
    return True


def unmovable(cache: Cache, entry: WorkloadEntry) -> str:
    """Why a workload is not moved now wherever all of it were to go; "" where it may be. Without budgets and places."""
    return why_not_relocated(cache, entry) or _why_bound(entry, entry.pods.values())


def gather_pod_sets(cache: Cache, entry: WorkloadEntry) -> AssumedAdmission | None:
    """Fewer domains for pod sets that prefer a level and are spread; None where that is not so, or there is no room."""
    if as_one(entry):
        return _grant_with(entry, gather_all(cache.state, entry.key, _pod_sets(cache, entry)))
    found = _searched(cache, entry, lambda _, pod_set, _held: gather(cache.state, entry.key, pod_set))
    return found if isinstance(found, AssumedAdmission) else None


def is_spread(entry: WorkloadEntry) -> bool:
    """Whether some pod set prefers a level, uses several domains of it, and may come together. Cheap: most are not."""
    used: dict[str, set[tuple[str, ...]]] = {}  # by those that share a domain
    for owned in entry.job.pod_sets:
        slots, request = entry.slots_in.get(owned.name), owned.request
        if slots is None or request is None or request.policy is not Policy.PREFERRED:
            continue
        depth = slots.levels.index(request.level) + 1 if request.level in slots.levels else len(slots.levels)
        unit = f"group {request.group or owned.shared}" if request.group or owned.shared else owned.name
        used.setdefault(unit, set()).update(slot.values[:depth] for slot in slots.slots)
    return any(len(domains) > 1 for domains in used.values())


def going(cache: Cache, entry: WorkloadEntry) -> Going | None:
    """What goes when it makes room for another; None where it is not moved now."""
    if unmovable(cache, entry):
        return None
    return Going(tuple(_pod_sets(cache, entry)), tuple(map(key, entry.pods.values())), as_one=as_one(entry))


def realigned(cache: Cache, entry: WorkloadEntry, pods: Mapping[str, str]) -> AssumedAdmission | None:
    """Other nodes for these pods (by uid); None where there is none for them."""
    gone: dict[str, dict[Path, int]] = {}
    for uid in pods:
        pod = entry.pods[uid]
        slots = entry.slots_of(pod)
        index = slots.of_selector(pod.spec.node_selector) if slots is not None else None
        if slots is None or index is None or not slots.slots[index].node:
            return None  # a slot that is more than one node: nobody could say which one it would come to
        mine = gone.setdefault(entry.pod_set_of(pod), {})
        mine[slots.slots[index].values] = mine.get(slots.slots[index].values, 0) + 1

    if as_one(entry):
        return _grant_with(entry, away(cache.state, entry.key, _pod_sets(cache, entry)))

    def search(owned: PodSetView, pod_set: PodSet, _: Assignment) -> Found:
        return relocate(cache.state, entry.key, pod_set, gone[owned.name]) if owned.name in gone else None

    found = _searched(cache, entry, search)
    return found if isinstance(found, AssumedAdmission) else None


def moved_to(
    cache: Cache, entry: WorkloadEntry, nodes: Mapping[str, Collection[str]]
) -> AssumedAdmission | Refusal | None:
    """Its pods on these nodes alone, by pod set; None where they are there already, or a refusal."""
    if as_one(entry):
        there = all(
            node in nodes[part.pod_set]
            for part in cache.state.assignments(entry.key).values()
            if part.pod_set in nodes
            for piece in part.slices
            for node, _ in piece.nodes
        )
        found = None if there else away(cache.state, entry.key, _pod_sets(cache, entry), nodes)
        return found if isinstance(found, Refusal) else _grant_with(entry, found)

    def search(owned: PodSetView, pod_set: PodSet, held: Assignment) -> Found:
        only = nodes.get(owned.name)
        if only is None:
            return None
        gone = {part.values: part.count for part in held.slices if not any(name in only for name, _ in part.nodes)}
        return relocate(cache.state, entry.key, pod_set, gone, only=only) if gone else None

    return _searched(cache, entry, search)


def _searched(cache: Cache, entry: WorkloadEntry, search: Search) -> AssumedAdmission | Refusal | None:
    """What a search finds for each pod set in turn; the first refusal, or None where there is nothing to do."""
    if entry.grant is None:
        return None
    named = {owned.name: owned for owned in entry.job.pod_sets}

    def elsewhere(name: str, held: Assignment) -> Found:
        pod_set = pod_set_in(cache, entry, named[name], held.levels, held.count)
        return search(named[name], pod_set, held)

    return moves.relocated(cache.state, entry.key, entry.grant, named, elsewhere)


def _pod_sets(cache: Cache, entry: WorkloadEntry) -> list[PodSet]:
    """Those of its pod sets that have slots, as they are asked for where they are."""
    held = cache.state.assignments(entry.key)
    return [
        pod_set_in(cache, entry, owned, part.levels, part.count)
        for owned in entry.job.pod_sets
        if (part := held.get(owned.name)) is not None and part.slices
    ]


def _grant_with(entry: WorkloadEntry, found: tuple[Assignment, ...] | Refusal | None) -> AssumedAdmission | None:
    """What it would hold with these instead; None where there are none."""
    if entry.grant is None or found is None or isinstance(found, Refusal):
        return None
    return moves.instead(entry.grant, found)


# --- the pods that would go ----------------------------------------------------------------------------------------


def leaving(entry: WorkloadEntry, grant: AssumedAdmission) -> dict[str, dict[Path, int]]:
    """By pod set the slots that a workload would leave."""
    before = entry.grant.assignments if entry.grant is not None else ()
    found: dict[str, dict[Path, int]] = {}
    for part in slots_removed(before, grant.assignments):
        for one in part.slices:
            found.setdefault(part.pod_set, {})[one.values] = one.count
    return found


def kept(cache: Cache, entry: WorkloadEntry, grant: AssumedAdmission) -> str:
    """Why the pods that would have to go for this may not; "" where they may."""
    gone = leaving(entry, grant)
    count = sum(sum(one.values()) for one in gone.values())
    if not cache.queues.budgets.allows(entry.key, count):
        return f"a PodDisruptionBudget does not let {count} of its pods go now"
    pods: list[Pod] = []
    for pod in entry.pods.values():
        slots = entry.slots_of(pod)
        index = slots.of_selector(pod.spec.node_selector) if slots is not None else None
        values = slots.slots[index].values if slots is not None and index is not None else None
        if values in gone.get(entry.pod_set_of(pod), {}):
            pods.append(pod)
    return _why_bound(entry, pods)


def _why_bound(entry: WorkloadEntry, pods: Iterable[Pod]) -> str:
    """Why one of these pods may not go, of those that have not finished; "" where all may."""
    # Pods of a ReplicaSet are counted one for one only where it is the workload's owner itself, and not in a pod group.
    makers = MADE_ANEW | {REPLICA_SET} if (entry.job.kind, entry.job.api_version) == REPLICA_SET else MADE_ANEW
    for pod in pods:
        if finished(pod):
            continue
        meta, owner = pod.metadata, controller_of(pod.metadata)
        if owner is None or (owner.kind, owner.api_version) not in makers:
            return f"nobody would create pod {meta.name} again"
        if why := stays(meta.annotations or {}, pod.spec.termination_grace_period_seconds):
            return f"pod {meta.name} {why}"
    return ""


def stays(annotations: Mapping[str, str], grace: int | None) -> str:
    """Why a pod is not moved that says so itself; "" where it may be. ``grace``: seconds that it has to stop."""
    if annotations.get(SAFE_TO_EVICT) == "false":
        return f"is not safe to evict ({SAFE_TO_EVICT})"
    if (DEFAULT_GRACE if grace is None else grace) > MOST_GRACE:
        return f"may take more than {MOST_GRACE} s to stop"
    return ""
