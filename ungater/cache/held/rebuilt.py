"""What a workload holds by its pods that run, where its Workload was deleted while no controller was there to see it.

Rules
- Pods say where they were sent and by which quota. Nobody else may write that where the policies are installed, but no
  word of it is taken: each has to be on that very node, in a flavor that covers what it asks for, of the ClusterQueue
  that its LocalQueue leads to. Where nobody suspends it, it may name another queue by now, or none: what runs was let
  go by the old one, and goes on in that, as far as a LocalQueue of its namespace still leads there.
- All that is asked for has to hold: as many pods as the job needs, levels, slices and groups. Places for pods that are
  missing are found beside those that run, as for a job that grows. A job that is suspended while it waits starts anew
  where there is no room for them; of any other the pods would run on and keep that room from it, so it holds what they
  have, and grows later, also where its quota does not cover more.
- What runs is charged already, and never refused for quota: where a queue has less by now than its pods run with, or is
  stopped, they hold it all the same, as an admission that is stored would. What is missing has to be paid for.
- Slots of an admission that is stored are not taken. What is kept for a nominated workload is: its victims still run,
  and one whose Workload is gone is not known to be a victim. It is planned anew.
- Where any of that fails nothing is held, and the job waits like one that was never admitted.
- Where the Workload was made anew and nobody could write its status any more, a note on it (`crds.constants.HELD`) says
  what the job holds. It counts only where pods do not say enough, some run, and all of the above is so.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from crds.admitted_quota import AdmittedQuota, decode
from crds.constants import ADMITTED_QUOTA
from crds.request import RequestError, resolve
from engine.cluster.assignment import Assignment
from engine.model import PODS, Flavor, PodSet, Policy, TopologyRequest
from engine.placement.place import extend
from engine.reasons import Reason
from engine.reservation_key import ReservationKey
from engine.results import Refusal
from kube.objects import Pod, key
from queueing.model import exceeds
from ungater.cache.claims.device_quota import DeviceQuota
from ungater.cache.core import Core
from ungater.cache.held.admissions import Admissions
from ungater.cache.held.kept_pods import (
    KeptPods,
    are_inside,
    are_together,
    claim_slots,
    grows,
    has_room,
    largest_amounts,
    runs,
)
from ungater.cache.held.pod_sets import RequestedPodSets
from ungater.cache.held.reservations import Reservations
from ungater.jobs.pod_group import mark_of
from ungater.model.admission import Admission, PodSetAssignment, assign_pod_set
from ungater.model.job_view import PodSetView
from ungater.model.pod_slots import finished, is_gated
from ungater.model.workload_entry import WorkloadEntry


class RebuiltAdmissions:
    """See the module's rules."""

    def __init__(
        self,
        core: Core,
        admissions: Admissions,
        reservations: Reservations,
        pod_sets: RequestedPodSets,
        quota: DeviceQuota,
    ) -> None:
        self._core = core
        self._keys = core.keys
        self._state = core.state
        self._stores = core.stores
        self._queues = core.queues
        self._admissions = admissions
        self._reservations = reservations
        self._pod_sets = pod_sets
        self._quota = quota

    def rebuild_admission(self, entry: WorkloadEntry) -> bool:
        """Hold what its pods have, once all that there is was taken in; True where that is so."""
        job, observed = entry.job, entry.observed
        noted = observed.held if observed is not None else None
        there = observed is not None or self._stores.workload(entry.key) is not None
        # A Workload that is there says itself what is held; pods are asked only where nobody else says it.
        if entry.admission is not None or (there and noted is None):
            return False
        if (
            job.over
            or job.suspended
            or (job.request is None and not job.queue)
            or isinstance(job.request, RequestError)
        ):
            return False
        admission = self._of_pods(entry) or (self._of_note(entry, noted) if noted is not None else None)
        if admission is None:
            return False
        if observed is None:
            entry.forget_workload(self._local_queue(entry, admission.queue) if admission.queue else job.queue)
        self._admissions.hold_admission(entry, admission)
        entry.mark_started()
        return True

    def _of_pods(self, entry: WorkloadEntry) -> Admission | None:
        """What its pods say that it has, if it is so."""
        job = entry.job
        kept = [one for pod_set in job.pod_sets if (one := self._kept_pods(entry, pod_set)) is not None]
        if len(kept) < len(job.pod_sets) or not any(one.pods for one in kept):
            return None
        # With places for missing pods if quota covers them, else with
        # what runs: that takes room whether it is held or not.
        for complete in (True, False) if grows(entry) else (True,):
            admission = self._admission(entry, kept, complete=complete)
            if admission is None or any(
                one.quota is not None and one.quota.cluster_queue != admission.queue for one in kept
            ):
                return None
            if self._pays(entry, admission):
                return admission
        return None

    def _of_note(self, entry: WorkloadEntry, noted: Admission) -> Admission | None:
        """What is noted on its Workload, where its pods run in that, and there is room and quota for it."""
        kept: list[KeptPods] = []
        for pod_set, part in zip(entry.job.pod_sets, noted.parts, strict=False):
            slots, pods = part.slots, self._placed_pods(entry, pod_set)
            flavor = self._state.flavors.get(slots.flavor) if slots is not None else None
            quota = AdmittedQuota(noted.queue, dict(part.flavors)) if noted.queue else None
            one = self._read_kept_pods(pod_set, pods, quota, flavor)
            if part.name != pod_set.name or part.count > pod_set.full or exceeds(one.charged, part.asks or {}):
                return None
            if slots is not None and (flavor is None or flavor.levels != slots.levels or not are_inside(one, slots)):
                return None
            if not self._are_there(one):
                return None
            kept.append(one)
        if len(kept) != len(entry.job.pod_sets) or len(kept) != len(noted.parts) or not runs(entry, self._keys.gate):
            return None
        return noted if self._pays(entry, noted) and self._rebuild_assignments(entry, kept, noted) is not None else None

    # --- what pods say, and whether it is so -----------------------------------------------------------------------

    def _kept_pods(self, entry: WorkloadEntry, pod_set: PodSetView) -> KeptPods | None:
        """The pods of a pod set that have places; None where they do not say one and the same thing, or no truth."""
        pods = self._placed_pods(entry, pod_set)
        if not pods:
            return KeptPods(pod_set, (), None, None, {}, {}) if not pod_set.count or grows(entry) else None
        # More pods than the job wants: some of them are not its own, or it shrinks; no word of theirs is believed.
        if len(pods) > pod_set.count:
            return None
        said = {(pod.metadata.annotations or {}).get(ADMITTED_QUOTA) for pod in pods}
        text = next(iter(said))
        quota = decode(text)
        # Pods of one pod set run by one admission. Where they differ, somebody wrote on them, or they are of two times.
        if len(said) > 1 or (text and quota is None) or (quota is None and entry.job.queue):
            return None
        tried = [self._read_kept_pods(pod_set, pods, quota, flavor) for flavor in self._flavors(quota)]
        # One on a node that is gone by now, or on its way to it, is lost: it is missing, and another is made for it.
        stay = [replace(one, pods=tuple(pod for pod in pods if not self._is_lost(one, pod))) for one in tried]
        return next((one for one in (*tried, *stay) if one.pods and self._are_there(one)), None)

    def _is_lost(self, kept: KeptPods, pod: Pod) -> bool:
        if pod.spec.node_name:
            return pod.spec.node_name not in self._state.nodes
        return not self._is_there(kept, pod)

    def _are_there(self, kept: KeptPods) -> bool:
        return all(self._is_there(kept, pod) for pod in kept.pods)

    def _placed_pods(self, entry: WorkloadEntry, pod_set: PodSetView) -> tuple[Pod, ...]:
        """Pods that were let go for this workload and take room; of those that end only as many as are missing."""
        found: list[Pod] = []
        for pod in sorted(entry.pods_of_pod_set(pod_set), key=lambda pod: pod.metadata.name):
            given = (pod.metadata.annotations or {}).get(self._keys.pod_set, pod_set.name)
            ours = mark_of(pod, self._keys) == entry.job.workload and given == pod_set.name
            if ours and not is_gated(pod, self._keys.gate) and not finished(pod):
                found.append(pod)
        stay = [pod for pod in found if pod.metadata.deletion_timestamp is None]
        dead = self._core.dead
        end = [pod for pod in found if pod not in stay and pod.spec.node_name and not dead(pod.spec.node_name)]
        return (*stay, *end[: max(0, pod_set.count - len(stay))]) if stay else ()

    def _read_kept_pods(
        self, pod_set: PodSetView, pods: tuple[Pod, ...], quota: AdmittedQuota | None, flavor: Flavor | None
    ) -> KeptPods:
        asks = largest_amounts(map(self._quota.asked_by, pods))
        charged = asks if quota is None else largest_amounts(map(self._quota.quota_of_pod, pods))
        return KeptPods(pod_set, pods, quota, flavor, asks, charged)

    def _flavors(self, quota: AdmittedQuota | None) -> Iterator[Flavor | None]:
        """The flavors with a topology that the pods may be in; None: in none."""
        flavors = self._state.flavors
        if quota is None:
            yield from (flavors[name] for name in sorted(flavors))
            return
        rooms = {name for name in quota.flavors.values() if name in flavors}
        # A pod set is in one flavor with a topology at most, so two of them are no admission of ours.
        if len(rooms) <= 1:
            yield flavors[rooms.pop()] if rooms else None

    def _is_there(self, kept: KeptPods, pod: Pod) -> bool:
        """Whether a pod is where it says that it was sent, on a node of its flavors; or on its way to what is there."""
        flavor, node = kept.flavor, self._state.nodes.get(pod.spec.node_name)
        labels = dict(zip(kept.levels, kept.place_of_pod(pod), strict=True))
        # No node has the label any more, so the pod's empty value for it is no contradiction.
        for level in self._state.cluster.lost_levels(kept.name):
            if not labels.get(level, ""):
                labels.pop(level, None)
        labels |= flavor.node_labels if flavor is not None else {}
        for name in kept.quota.flavors.values() if kept.quota is not None else ():
            if flavor is None or name != flavor.name:
                if (plain := self._queues.config.plain.get(name)) is None:
                    return False
                labels |= plain.node_labels
        if pod.spec.node_name:
            return node is not None and labels.items() <= node.labels.items()
        tree = self._state.tree(flavor.name) if flavor is not None else None
        return flavor is None or (tree is not None and kept.place_of_pod(pod) in tree.domain_of)

    # --- whether all that is asked for holds -----------------------------------------------------------------------

    def _admission(self, entry: WorkloadEntry, kept: Sequence[KeptPods], *, complete: bool) -> Admission | None:
        """What they hold together, ``complete`` with places for missing ones; None where that is not to be had."""
        parts = self._rebuild_assignments(entry, kept, complete=complete)
        if parts is None:
            return None
        queue = next((one.quota.cluster_queue for one in kept if one.quota is not None), "")
        return Admission(
            queue, tuple(self._assignment_of(one, parts.get(one.pod_set.name), complete=complete) for one in kept)
        )

    def _rebuild_assignments(
        self, entry: WorkloadEntry, kept: Sequence[KeptPods], noted: Admission | None = None, *, complete: bool = True
    ) -> dict[str, Assignment] | None:
        """What they hold in the engine, or what is noted; None where that is not what is asked for, or has no room."""
        state = self._state
        wished = {one.pod_set.name: wish for one in kept if (wish := self._wish(entry, one)) is not None}
        if any(one.flavor is not None and one.pod_set.name not in wished for one in kept):
            return None
        checkpoint = state.begin()
        try:
            # Its pods fill the slots that are restored below; charged
            # beside them they would seem to overdraw their nodes.
            for one in kept:
                claim_slots(state, entry.key, one.pod_set.name, one.pods)
            if noted is not None:
                slots = [part for part in noted.parts if part.slots is not None]
                state.restore_slots(entry.key, [self._reservations.assignment(entry, part) for part in slots])
            else:
                state.restore_slots(entry.key, [one.assignment(wished[one.pod_set.name]) for one in kept if one.flavor])
            for one in kept if noted is None else ():
                more = self._completed(entry, one, wished, complete=complete)
                if more is None:
                    return None
                others = [part for name, part in state.assignments(entry.key).items() if name != one.pod_set.name]
                state.reserve(entry.key, [*others, *more])
            parts = dict(state.assignments(entry.key))
            # Their victims still run in that room, perhaps these very pods: what is promised is planned again.
            state.release_all([name for name in self._queues.holders.nominated if name != entry.key])
            return parts if has_room(state, parts.values()) and are_together(kept, wished, parts) else None
        finally:
            state.rollback(checkpoint)

    def _wish(self, entry: WorkloadEntry, kept: KeptPods) -> PodSet | None:
        """What a pod set asks for in its flavor; None where it asks for what that has not."""
        if kept.flavor is None:
            return None
        asked = kept.pod_set.request
        found = resolve(asked, kept.levels) if asked is not None else TopologyRequest(policy=Policy.UNCONSTRAINED)
        if found is None:
            return None
        return msgspec.structs.replace(self._pod_sets.pod_set(entry, kept.pod_set, found), requests=kept.asks)

    def _completed(
        self, entry: WorkloadEntry, kept: KeptPods, wished: Mapping[str, PodSet], *, complete: bool
    ) -> tuple[Assignment, ...] | None:
        """The places of a pod set with those of pods that are missing, as far as they have to be there.

        ``complete``: False leaves them for later, where they may come later.
        """
        held = self._state.assignments(entry.key).get(kept.pod_set.name)
        if held is None:
            return () if kept.flavor is None else None
        wish, missing = wished[kept.pod_set.name], kept.pod_set.count - len(kept.pods)
        if not complete and not wish.group:
            return (held,)
        found = extend(self._state, entry.key, wish, missing)
        if isinstance(found, Refusal):
            return (held,) if grows(entry) and not wish.group else None
        return (found,)

    def _assignment_of(self, kept: KeptPods, held: Assignment | None, *, complete: bool) -> PodSetAssignment:
        """What is stored of it."""
        wanted = kept.pod_set.count if complete and kept.pods else len(kept.pods)
        count = held.count if held is not None else wanted
        flavors, taken = None, {PODS: 1, **kept.charged}
        if kept.quota is not None:
            flavors = {name: one for name, one in kept.quota.flavors.items() if taken.get(name)}
        return assign_pod_set(kept.pod_set.name, count, kept.charged, flavors, held)

    # --- whether it is paid for ------------------------------------------------------------------------------------

    def _pays(self, entry: WorkloadEntry, admission: Admission) -> bool:
        """Whether the queue that a LocalQueue of its leads to covers all of it, and has what is not charged already."""
        if not admission.queue:
            return not entry.job.queue and all(part.slots is not None or not part.count for part in admission.parts)
        queues, quotas, name = self._queues, self._queues.quotas, admission.queue
        workload = self._reservations.workload(
            entry, self._pod_sets.wish(entry), self._pod_sets.priority_of_entry(entry)
        )
        workload = msgspec.structs.replace(workload, queue=self._local_queue(entry, name))
        refusal, found = queues.config.refuse_workload(workload)
        if found != name or (refusal is not None and refusal.reason is not Reason.QUEUE_STOPPED):
            return False
        if not all(self._covered(name, part) for part in admission.parts):
            return False
        depth, charged = quotas.begin(), Counter[tuple[str, str]]()
        try:
            for pod in entry.pods.values():
                # The quota that its pods run with is charged already, pod by
                # pod: it must not be asked for a second time.
                if (own := quotas.release_quota(ReservationKey.for_orphan(key(pod)))) is not None and own.queue == name:
                    charged.update(own.amounts)
            more = {one: amount for one, amount in admission.quota_amounts.items() if amount > charged[one]}
            return quotas.fits_quota(name, more, non_preemptible=quotas.is_protected(name, workload))
        finally:
            quotas.rollback(depth)

    def _local_queue(self, entry: WorkloadEntry, queue: str) -> str:
        """The LocalQueue by which it is in this ClusterQueue; where that is not its own, only if nobody suspends it."""
        own, namespace = entry.job.queue, entry.job.namespace
        if not grows(entry):
            return own
        local = self._queues.config.local.items()
        leading = [name for (where, name), one in local if (where, one.cluster_queue) == (namespace, queue)]
        return own if own in leading else min(leading, default=own)

    def _covered(self, queue: str, part: PodSetAssignment) -> bool:
        """Whether a pod set has a flavor for each resource that it takes, one for those that belong together."""
        groups = self._queues.quotas.queues[queue].groups
        owed = {resource for resource, amount in part.usage.items() if amount > 0}
        for group in groups:
            mine = owed & {*group.resources}
            if len({part.flavors.get(resource, "") for resource in mine}) > 1:
                return False
        covered = {resource for group in groups for resource in group.resources}
        return owed - covered <= {PODS} and all(
            self._queues.quotas.has_quota(queue, (part.flavors.get(resource, ""), resource))
            for resource in owed & covered
        )
