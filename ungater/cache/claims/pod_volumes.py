"""What the volumes of pods say: where their pods may go, what nodes attach of them, and why pods have to wait for them.

Rules
- What the template of a pod set names, all its pods have: they go where all of that reaches. What single pods name, or
  have made for them, holds for those (`engine.model.Pinned`).
- A workload is given nothing as long as a claim of it is not ready (`kube.volumes.binding.NotReady`). A pod that has a
  slot is let go once its own claims are, and to no slot that they do not reach.
- A claim that several pods of a pod set have counts once on a node; all others count for each pod, and so do all where
  more than `MOST_CLAIMS` are shared that the template does not name.
- A claim with access mode ReadWriteOncePod is for one pod: others wait until it has ended.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import msgspec

from crds.constants import Keys
from engine.cluster.state import ClusterState
from engine.cluster.unusable_slots import SlotNodes
from engine.model import NOTHING_ATTACHED, Attached, Pinned, PodSet
from kube import objects
from kube.pods.limits import MOST_CLAIMS
from kube.pods.volumes import claims_in, claims_of
from kube.volumes.binding import NotReady, Storage, VolumeReach, attachable, limit_of
from ungater.cache.claims.volume_claims import ClaimLookUps, JobClaims, PodReach, combined
from ungater.model.job_view import PodSetView
from ungater.model.pod_slots import PodSetSlots, finished, is_gated
from ungater.model.workload_entry import WorkloadEntry
from ungater.reconcile.context import PodChoice

MOST_NOTED = 1024  # claims and classes for which one job is looked at again
MOST_PARTS = 256  # of a pod set, by where its pods' own volumes reach; beyond, all pods go where all of them do


class PodVolumes:
    """See the module's rules. ``pods_with``: the pods that name a claim, by ``namespace/name`` of it."""

    def __init__(
        self, storage: Storage, pods_with: Callable[[str], Iterable[objects.Pod]], state: ClusterState, keys: Keys
    ) -> None:
        self._storage = storage
        self._state = state
        self._keys = keys
        self._concerned: dict[str, set[str]] = {}  # by key of a claim or name of a class: ids of jobs
        self._named: dict[str, dict[str, None]] = {}  # the other way round, the newest last
        self._expected: dict[str, objects.ClaimSpec] = {}
        self._known = ClaimLookUps(storage, pods_with, keys, self._expected, self._record_wanted)

    def expect(self, claims: Mapping[str, objects.ClaimSpec]) -> None:
        """Take these claims, by ``namespace/name``, for some that are made soon: a dry run has them come."""
        self._expected.update(claims)

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
        named, pods, claims = (
            claims_in(owned.template.spec),
            list(self._pods_with_claims(entry, owned)),
            self._claims(entry),
        )
        if not named and not pods:
            return pod_set
        common = combined(claims.ready(named))
        own = {pod.metadata.uid: claims.own(named, pod) for pod in pods}
        made = {one.name for one in named if one.template is not None}
        several = {one for one, many in Counter(one for pod in own.values() for one in pod.limits).items() if many > 1}
        # Pods may share any number of claims; counted for each pod instead, a node attaches fewer, never more.
        if len(several) > MOST_CLAIMS:
            several = set()
        shared = dict.fromkeys(one for one in common.limits if one[1] not in made)
        shared |= dict.fromkeys(one for pod in own.values() for one in pod.limits if one in several)
        each = {uid: Counter([one[0] for one in pod.limits if one not in several]) for uid, pod in own.items()}
        parts = Counter((one.nodes, tuple(sorted(each[uid].items()))) for uid, one in own.items() if one.nodes)
        nodes = dict.fromkeys(common.nodes)
        # The common reach of all is narrower than each pod's own, so no pod is sent where its volumes do not reach.
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

    def _claims(self, entry: WorkloadEntry) -> JobClaims:
        return JobClaims(self._known, entry)

    def _pods_with_claims(self, entry: WorkloadEntry, owned: PodSetView) -> Iterator[objects.Pod]:
        """Pods with claims that may be on a node, or are to come to one."""
        return (pod for pod in entry.pods_of_pod_set(owned) if pod.spec.volumes is not None and not finished(pod))

    # --- who waits -----------------------------------------------------------------------------------------------

    def volume_hindrance(self, entry: WorkloadEntry) -> str | None:
        """Why a workload is given nothing as its volumes stand; None where they are ready."""
        claims = self._claims(entry)
        for owned in entry.job.pod_sets if not entry.job.over else ():
            named = claims_in(owned.template.spec)
            for one in named if owned.count else ():
                found = claims.of_template(one)
                why = claims.in_use(one.name) if isinstance(found, VolumeReach) and found.alone else None
                if isinstance(found, NotReady) or why is not None:
                    return found.message if isinstance(found, NotReady) else why
            waiting = (pod for pod in self._pods_with_claims(entry, owned) if is_gated(pod, self._keys.gate))
            for pod in sorted(waiting, key=lambda pod: pod.metadata.name):
                found_all = claims.reach_of_pod(pod)
                if isinstance(found_all, NotReady) and pod.metadata.deletion_timestamp is None:
                    return f"pod {pod.metadata.name}: {found_all.message}"
        return None

    def choices(
        self, entry: WorkloadEntry, slots: PodSetSlots, waiting: Iterable[objects.Pod]
    ) -> Mapping[str, PodChoice]:
        """By uid, the slots that gated pods may go to, where those are not all of them."""
        found: dict[str, PodChoice] = {}
        claims, nodes = self._claims(entry), None
        where: dict[object, frozenset[int]] = {}  # by what is reached
        given: set[str] = set()
        with_claims = (pod for pod in waiting if pod.spec.volumes is not None)
        for pod in sorted(with_claims, key=lambda pod: pod.metadata.name):
            reach = claims.reach_of_pod(pod)
            # Two pods of one look: the claim is not in use yet, and both would be let go.
            if isinstance(reach, PodReach) and (taken := given.intersection(reach.alone)):
                reach = NotReady(f'persistentvolumeclaim "{min(taken)}" is ReadWriteOncePod: another pod has it first')
            if isinstance(reach, NotReady):
                found[pod.metadata.uid] = PodChoice(frozenset(), reach.message)
                continue
            given.update(reach.alone)
            if not reach.nodes:
                continue
            places = slots.slots
            nodes = nodes or SlotNodes(
                self._state, slots.flavor, slots.levels, [(slot.values, slot.node) for slot in places]
            )
            if reach.nodes not in where:
                where[reach.nodes] = nodes.reached(reach.nodes)
            if len(where[reach.nodes]) < len(places):
                found[pod.metadata.uid] = PodChoice(where[reach.nodes])
        return found

    # --- whom it concerns ----------------------------------------------------------------------------------------

    def concerned(self, key: str) -> Collection[str]:
        """The ids of the jobs that name a claim (``namespace/name``) in a template, or wait for a class."""
        return tuple(self._concerned.get(key, ()))

    def forget_job_volumes(self, uid: str) -> None:
        """A job is gone."""
        for key in self._named.pop(uid, ()):
            self._unconcern(key, uid)

    def _record_wanted(self, uid: str, key: str) -> None:
        """Of so many that a job waits for, the newest count: whoever makes claims could name any number of classes."""
        known = self._named.setdefault(uid, {})
        # To the end: the order is that of the latest use.
        known.pop(key, None)
        known[key] = None
        self._concerned.setdefault(key, set()).add(uid)
        if len(known) > MOST_NOTED:
            oldest = next(iter(known))
            del known[oldest]
            self._unconcern(oldest, uid)

    def _unconcern(self, key: str, uid: str) -> None:
        others = self._concerned[key]
        others.discard(uid)
        if not others:
            del self._concerned[key]
