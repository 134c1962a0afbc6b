"""What the volumes of pods say: where their pods may go, what nodes attach of them, and why pods have to wait for them.

Rules
- What the template of a pod set names, all its pods have: they go where all of that reaches. What single pods name, or
  have made for them, holds for those (`engine.model.Pinned`).
- A workload is given nothing as long as a claim of it is not ready (`kube.volumes.binding.NotReady`). A pod that has a
  slot is let go once its own claims are, and to no slot that they do not reach.
- A claim that several pods of a pod set have counts once on a node; all others count for each pod.
- A claim with access mode ReadWriteOncePod is for one pod: others wait until it has ended.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from crds.constants import Keys
from engine.cluster.state import ClusterState
from engine.cluster.unusable_slots import reached
from engine.model import NOTHING_ATTACHED, Attached, Pinned, PodSet
from kube import objects
from kube.pods.volumes import PodClaim, claims_in, claims_of
from kube.volumes.binding import NotReady, Reach, Storage, Terms, attachable, limit_of, reach_of, reach_of_template
from ungater.model.actions import PodChoice
from ungater.model.job_view import PodSetView
from ungater.model.pod_slots import PodSetSlots, finished, is_gated
from ungater.model.workload_entry import WorkloadEntry

MOST_PARTS = 256  # of a pod set, by where its pods' own volumes reach; beyond, all pods go where all of them do


@dataclass(frozen=True)
class PodReach:
    """Where all claims of a pod let it go, and by which limits they count. ``alone``: keys of those for one pod."""

    nodes: tuple[Terms, ...] = ()
    limits: tuple[tuple[str, str], ...] = ()  # (limit, name of the claim)
    alone: tuple[str, ...] = ()


class PodVolumes:
    """See the module's rules. ``pods_with``: the pods that name a claim, by ``namespace/name`` of it."""

    def __init__(
        self, storage: Storage, pods_with: Callable[[str], Iterable[objects.Pod]], state: ClusterState, keys: Keys
    ) -> None:
        self._storage = storage
        self._pods_with = pods_with
        self._state = state
        self._keys = keys
        self._concerned: dict[str, set[str]] = {}  # by key of a claim or name of a class: ids of jobs
        self._named: dict[str, set[str]] = {}  # the other way round
        self._expected: dict[str, objects.ClaimSpec] = {}

    def expect(self, claims: Mapping[str, objects.ClaimSpec]) -> None:
        """Take these claims, by ``namespace/name``, for some that are made soon: a dry run has them come."""
        self._expected |= claims

    # --- of nodes and pods ---------------------------------------------------------------------------------------

    def attachable(self, node: objects.Node) -> dict[str, int]:
        """How many volumes a node attaches, by limit."""
        return attachable(self._storage, node)

    def attached(self, pod: objects.Pod) -> Attached:
        """The volumes of a pod that is on a node."""
        if pod.spec.volumes is None:
            return NOTHING_ATTACHED
        namespace = pod.metadata.namespace
        found = ((limit_of(self._storage, namespace, one.name), one.name) for one in claims_of(pod))
        return Attached(shared=tuple(dict.fromkeys((limit, f"{namespace}/{name}") for limit, name in found if limit)))

    # --- of pod sets ---------------------------------------------------------------------------------------------

    def added(self, entry: WorkloadEntry, owned: PodSetView, pod_set: PodSet) -> PodSet:
        """The pod set as the volumes of its pods have it."""
        named, pods = claims_in(owned.template.spec), list(self._pods(entry, owned))
        if not named and not pods:
            return pod_set
        common = _combined(self._of_template(entry, named))
        own = {pod.metadata.uid: self._own(entry, named, pod) for pod in pods}
        made = {one.name for one in named if one.template is not None}
        several = Counter(one for pod in own.values() for one in pod.limits)
        shared = [one for one in common.limits if one[1] not in made] + [
            one for one, many in several.items() if many > 1
        ]
        each = {uid: Counter([one[0] for one in pod.limits if several[one] == 1]) for uid, pod in own.items()}
        parts = Counter((one.nodes, tuple(sorted(each[uid].items()))) for uid, one in own.items() if one.nodes)
        nodes = dict.fromkeys(common.nodes)
        if len(parts) > MOST_PARTS:
            nodes |= dict.fromkeys(terms for part, _ in parts for terms in part)
            parts.clear()
        most = Counter(limit for limit, name in common.limits if name in made)
        for counts in each.values():
            most |= counts
        return msgspec.structs.replace(
            pod_set,
            volume_nodes=tuple(nodes),
            pinned=tuple([Pinned(nodes=part, count=count, own=dict(own)) for (part, own), count in parts.items()]),
            attached=Attached(
                own=dict(most), shared=tuple([(limit, f"{entry.job.namespace}/{name}") for limit, name in shared])
            ),
        )

    def _of_template(self, entry: WorkloadEntry, named: Iterable[PodClaim]) -> Iterator[tuple[str, Reach]]:
        for one in named:
            if isinstance(found := self._reach(entry, one, entry.job.namespace, of_template=True), Reach):
                yield one.name, found

    def _own(self, entry: WorkloadEntry, named: Iterable[PodClaim], pod: objects.Pod) -> PodReach:
        """What the claims say that a pod has and its template does not name."""
        known = {one.name for one in named if one.template is None}
        claims = [one for one in claims_of(pod) if one.template is not None or one.name not in known]
        found = ((one.name, self._of_pod(entry, pod, one)) for one in claims)
        return _combined((name, reach) for name, reach in found if isinstance(reach, Reach))

    def _pods(self, entry: WorkloadEntry, owned: PodSetView) -> Iterator[objects.Pod]:
        """Pods with claims that may be on a node, or are to come to one."""
        return (pod for pod in entry.pods_of(owned) if pod.spec.volumes is not None and not finished(pod))

    # --- who waits -----------------------------------------------------------------------------------------------

    def hindrance(self, entry: WorkloadEntry) -> str | None:
        """Why a workload is given nothing as its volumes stand; None where they are ready."""
        for owned in entry.job.pod_sets if not entry.job.over else ():
            named = claims_in(owned.template.spec)
            for one in named if owned.count else ():
                found = self._reach(entry, one, entry.job.namespace, of_template=True)
                why = self._in_use(entry, one.name) if isinstance(found, Reach) and found.alone else None
                if isinstance(found, NotReady) or why is not None:
                    return found.message if isinstance(found, NotReady) else why
            waiting = (pod for pod in self._pods(entry, owned) if is_gated(pod, self._keys.gate))
            for pod in sorted(waiting, key=lambda pod: pod.metadata.name):
                found_all = self._of_claims(entry, pod)
                if isinstance(found_all, NotReady) and pod.metadata.deletion_timestamp is None:
                    return f"pod {pod.metadata.name}: {found_all.message}"
        return None

    def choices(
        self, entry: WorkloadEntry, slots: PodSetSlots, waiting: Iterable[objects.Pod]
    ) -> Mapping[str, PodChoice]:
        """By uid, the slots that gated pods may go to, where those are not all of them."""
        found: dict[str, PodChoice] = {}
        places = [(slot.values, slot.node) for slot in slots.slots]
        where: dict[tuple[Terms, ...], frozenset[int]] = {}
        given: set[str] = set()
        with_claims = (pod for pod in waiting if pod.spec.volumes is not None)
        for pod in sorted(with_claims, key=lambda pod: pod.metadata.name):
            reach = self._of_claims(entry, pod)
            if isinstance(reach, PodReach) and (taken := given.intersection(reach.alone)):
                reach = NotReady(f'persistentvolumeclaim "{min(taken)}" is ReadWriteOncePod: another pod has it first')
            if isinstance(reach, NotReady):
                found[pod.metadata.uid] = PodChoice(frozenset(), reach.message)
                continue
            given.update(reach.alone)
            if reach.nodes not in where:
                where[reach.nodes] = reached(self._state, slots.flavor, slots.levels, reach.nodes, places)
            if len(where[reach.nodes]) < len(places):
                found[pod.metadata.uid] = PodChoice(where[reach.nodes])
        return found

    def _of_claims(self, entry: WorkloadEntry, pod: objects.Pod) -> PodReach | NotReady:
        """What all claims of a pod say, or the first that is not ready."""
        found: list[tuple[str, Reach]] = []
        for one in claims_of(pod):
            reach = self._of_pod(entry, pod, one)
            if isinstance(reach, NotReady):
                return reach
            if reach.alone and (why := self._in_use(entry, one.name, pod)) is not None:
                return NotReady(why)
            found.append((one.name, reach))
        return _combined(found)

    def _of_pod(self, entry: WorkloadEntry, pod: objects.Pod, one: PodClaim) -> Reach | NotReady:
        """What one claim of a pod says."""
        namespace = pod.metadata.namespace
        key = f"{namespace}/{one.name}"
        claim = self._storage.claim(key) if one.template is not None else None
        if one.template is not None and (claim is not None or key not in self._expected):
            if claim is None:
                return NotReady(
                    f'waiting for the ephemeral volume controller to make persistentvolumeclaim "{one.name}"'
                )
            controller = objects.controller_of(claim.metadata)
            if controller is None or controller.uid != pod.metadata.uid:
                return NotReady(f'persistentvolumeclaim "{one.name}" was not made for pod {pod.metadata.name}')
        return self._reach(entry, one, namespace)

    def _reach(
        self, entry: WorkloadEntry, one: PodClaim, namespace: str, *, of_template: bool = False
    ) -> Reach | NotReady:
        """What a claim says; who has it looks again when that may change."""
        if of_template and one.template is not None:
            named = one.template.storage_class_name
            self._note(entry.id, self._storage.default_class if named is None else named, "")
            return reach_of_template(self._storage, one.template)
        key = f"{namespace}/{one.name}"
        if of_template:
            self._note(entry.id, key)
        claim = self._storage.claim(key)
        if claim is None and key in self._expected:
            return reach_of_template(self._storage, self._expected[key])
        if claim is not None and not claim.spec.volume_name:
            self._note(entry.id, claim.storage_class)
        return reach_of(self._storage, namespace, one.name)

    def _in_use(self, entry: WorkloadEntry, name: str, own: objects.Pod | None = None) -> str | None:
        """Who has a claim that one pod alone may have; None where nobody else does.

        ``own``: the pod that asks; None for all pods of the workload.
        """
        for other in self._pods_with(f"{entry.job.namespace}/{name}"):
            uid, mark = other.metadata.uid, (other.metadata.annotations or {}).get(self._keys.workload)
            ours = uid == own.metadata.uid if own is not None else uid in entry.pods
            sent = entry.on_its_way(uid) is not None or (mark is not None and not is_gated(other, self._keys.gate))
            if not ours and not finished(other) and (other.spec.node_name or sent):
                return f'persistentvolumeclaim "{name}" is ReadWriteOncePod, and pod {other.metadata.name} has it'
        return None

    # --- whom it concerns ----------------------------------------------------------------------------------------

    def concerned(self, key: str) -> Collection[str]:
        """The ids of the jobs that name a claim (``namespace/name``) in a template, or wait for a class."""
        return tuple(self._concerned.get(key, ()))

    def forget(self, uid: str) -> None:
        """A job is gone."""
        for key in self._named.pop(uid, ()):
            others = self._concerned[key]
            others.discard(uid)
            if not others:
                del self._concerned[key]

    def _note(self, uid: str, *keys: str) -> None:
        known = self._named.setdefault(uid, set())
        for key in keys:
            if key not in known:
                known.add(key)
                self._concerned.setdefault(key, set()).add(uid)


def _combined(found: Iterable[tuple[str, Reach]]) -> PodReach:
    """What several claims say together."""
    listed = list(found)
    return PodReach(
        nodes=tuple(dict.fromkeys([terms for _, one in listed for terms in one.nodes])),
        limits=tuple([(one.limit, name) for name, one in listed if one.limit]),
        alone=tuple([name for name, one in listed if one.alone]),
    )
