"""The view of a job comes in, whatever its kind: an entry is made, changed or dropped."""

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter

from msgspec.structs import replace

from crds.names import longer_name
from engine.model import Node
from kube import objects
from kube.workloads import WorkloadObject
from ungater.cache.claims.device_claims import DeviceClaims
from ungater.cache.claims.pod_volumes import PodVolumes
from ungater.cache.config import PriorityClasses
from ungater.cache.core import Core
from ungater.cache.held.admissions import Admissions
from ungater.cache.made_pods import MadePods
from ungater.cache.owners import NamedGroups
from ungater.jobs.native_groups import groups_of, with_groups
from ungater.jobs.pod_group import GONE, mark_of
from ungater.model.job_view import JobView, PodSetView, earlier_name
from ungater.model.workload_entry import ObservedWorkload, WorkloadEntry
from ungater.model.workload_spec import belongs
from ungater.model.workload_status import observed_of

# Of a job: what alone changes no decision, or is compared by itself.
_UNDECIDED = frozenset({"ready", "pod_sets", "version", "outcome", "written", "suspended_at", "resumed_at"})
_OF_JOB = attrgetter(*(name for name in JobView.__struct_fields__ if name not in _UNDECIDED))
_OF_POD_SET = attrgetter(*(name for name in PodSetView.__struct_fields__ if name != "done"))

View = Callable[[JobView, WorkloadEntry | None, Mapping[str, Node]], JobView]  # how a job is to be looked at


class JobViews:
    """See the module. ``view``: how everything here is to look at a job; None: as it is."""

    def __init__(  # noqa: PLR0917
        self,
        core: Core,
        admissions: Admissions,
        volumes: PodVolumes,
        devices: DeviceClaims,
        groups: NamedGroups,
        priorities: PriorityClasses,
        pods: MadePods,
        view: View | None,
    ) -> None:
        self._state = core.state
        self._stores = core.stores
        self._queues = core.queues
        self._entries = core.entries
        self._owners = core.entries.owners
        self._enqueue = core.enqueue
        self._admissions = admissions
        self._volumes = volumes
        self._devices = devices
        self._groups = groups
        self._pods = pods
        self._keys = core.keys
        self._priority_of = priorities.of_spec if core.scheduler.compares_priority else None
        self._gated_orphans = core.entries.gated_orphans
        self._names = core.level_names
        self._served = core.served
        self._guard = core.guard
        self._view = view

    def view_of_job(self, own: JobView) -> JobView:
        """A job as everything here is to look at it."""
        find = self._stores.native_group if self._stores.reads_groups() else None
        # A level's name is read within the flavors of the job's queue: a second pool may call another label so.
        flavors = self._queues.config.flavors(own.namespace, own.queue) if own.queue else None
        names = self._names if flavors is None else self._names.from_flavors(flavors)
        own = with_groups(self._pods.with_made_pods(own).with_level_keys(names), find, self._keys, self._priority_of)
        return own if self._view is None else self._view(own, self._entries.get(own.id), self._state.nodes)

    def review_all(self) -> None:
        """Look at all jobs anew, for what they ask for may mean something else now."""
        # A copy: a review may drop an entry.
        for entry in tuple(self._entries.values()):
            with self._guard("workload", entry.key):
                self.review(entry.id)

    def review_grouped(self) -> None:
        """Look anew at those whose pods name a PodGroup: a class may have given them another priority."""
        for entry in [one for one in self._entries.values() if groups_of(one.job)]:
            with self._guard("workload", entry.key):
                self.review(entry.id)

    def before(self, uid: str) -> JobView | None:
        """A job as it was seen last."""
        entry = self._entries.get(uid)
        return entry.own if entry is not None else None

    def observe_job(self, own: JobView) -> None:
        """A job is there, or changed."""
        if (own.request is None and not own.gated and not own.queue) or not self._served.serves(own.namespace):
            self.drop(own.id)
            return
        entry = self._entries.get(own.id)
        if entry is None:
            self.add_job(replace(own, workload=self.free_name(own, self._owners.pods_of_owner(own.id))))
            return
        if entry.own is not None and own.version < entry.own.version:
            return  # older than what came of our own write
        self._view_of(entry, own)

    def review(self, uid: str) -> None:
        """Look at a job anew: it changed, or what `view` says of it may have."""
        entry = self._entries.get(uid)
        if entry is not None and entry.own is not None:
            self._view_of(entry, entry.own)

    def _view_of(self, entry: WorkloadEntry, own: JobView) -> None:
        before = entry.job
        self.renew(entry, own)
        if not entry.job.suspended and entry.admission is not None:
            entry.mark_started()
        resumed = before.suspended and not entry.job.over
        if _worth_a_look(before, entry.job, admitted=entry.admission is not None):
            # Its pods are about to come and have it looked at; a look before that finds nothing to do.
            self._enqueue(entry.id, entry.until_pods_come if resumed else 0.0)

    def renew(self, entry: WorkloadEntry, own: JobView) -> None:
        """Have an entry show its job as it is by now.

        One that was over may be so no more: a pod names the workload that it was let go for first, until our own patch
        to it is seen. What is stored for it is held again then, as it would be after a restart.
        """
        # Asked before the view changes: what is stored is held again only on the way from "over" to "not over".
        held, over = is_held(entry.job), entry.job.over
        entry.set_view(own, self.view_of_job(own))
        self._devices.remember_claims(entry)
        self._groups.remember_job(entry)
        if entry.job.over and not over:
            self._requeue_claimants(entry.id)
        if not held:
            self._hold_stored(entry)

    def free_name(self, own: JobView, pods: Iterable[objects.Pod]) -> str:
        """The name of the Workload of a job that is new: a longer one where the usual one is another's.

        Nothing may be known by a name that two jobs have: they would share what is held by it. The first has it, and
        whoever was given the longer one keeps that: its Workload is there, or one of its ``pods`` was let go for it.
        So does a job whose Workload was stored by 0.1.0, which had other names for those of other controllers.
        """
        earlier = replace(own, workload=earlier_name(own.kind, own.name, own.uid, own.part))
        # The stored name first, or pods that run by the old Workload would be charged to nobody.
        if earlier.workload != own.workload and self._own_workload(earlier) is not None:
            return earlier.workload
        longer, there = longer_name(own.workload, own.owner), self._stores.workload(own.workload_key)
        # A Workload that is known to be deleted blocks no name: its watch is late.
        others = there is not None and not belongs(there, own) and not self._entries.is_removed(there.metadata.uid)
        if (
            others
            or self._entries.knows_workload(own.workload_key)
            or self._stores.workload(f"{own.namespace}/{longer}") is not None
            # Pods that run by the longer name decide: with the usual one
            # they would be another workload's after a restart.
            or any(mark_of(pod, self._keys) == longer for pod in pods)
        ):
            return longer
        return own.workload

    def stored_for(self, own: JobView) -> ObservedWorkload | None:
        """What is stored for a job that has no entry yet; None where that is nothing, or is of another job."""
        there = self._own_workload(own)
        return observed_of(there) if there is not None else None

    def _own_workload(self, own: JobView) -> WorkloadObject | None:
        there = self._stores.workload(own.workload_key)
        if there is None or not belongs(there, own) or self._entries.is_removed(there.metadata.uid):
            return None
        return there if not self._entries.knows_workload(own.workload_key) else None

    def rename(self, entry: WorkloadEntry) -> bool:
        """The name of its Workload is another's, as was found when that was to be made. True where it has another now.

        What it holds is held by its name: then it waits for that.
        """
        if entry.own is None or entry.admission is not None or self._entries.get(entry.id) is not entry:
            return False
        longer = longer_name(entry.own.workload, entry.own.owner)
        if longer == entry.own.workload:
            return False
        # Under the old name, before the entry has the new one: queueing knows it by that.
        self._admissions.dequeue_entry(entry)
        own = replace(entry.own, workload=longer)
        self._entries.rename(entry, own, self.view_of_job(own))
        return True

    def add_job(self, own: JobView, after: float = 0.0) -> None:
        """A job is new; it is looked at ``after`` so many seconds."""
        owner = self.view_of_job(own)
        # Listed before it is filled: what is charged for its pods is found through the entry.
        entry = self._entries.add(owner, own)
        try:
            self._fill(entry)
        except Exception:
            self.drop(owner.id)  # half of one would be waited for at a start
            raise
        self._enqueue(owner.id, after)

    def _fill(self, entry: WorkloadEntry) -> None:
        """Take into a new entry what is there already: its pods, its Workload, and what that holds."""
        owner = entry.job
        self._devices.remember_claims(entry)
        self._groups.remember_job(entry)
        entry.pods.update({pod.metadata.uid: pod for pod in self._owners.pods_of_owner(owner.id)})
        workload = self._stores.workload(owner.workload_key)
        if workload is not None and belongs(workload, owner) and not self._entries.is_removed(workload.metadata.uid):
            entry.observe(observed_of(workload))
            self._hold_stored(entry)
        for uid, pod in entry.pods.items():
            self._gated_orphans.forget_orphan(uid)
            self._queues.holders.remove_pod(objects.key(pod))

    def _hold_stored(self, entry: WorkloadEntry) -> None:
        """Hold what its Workload has, unless the job is over."""
        observed = entry.observed
        if observed is None or observed.admission is None or entry.admission is not None or not is_held(entry.job):
            return
        self._admissions.hold_admission(entry, observed.admission)
        if not entry.job.suspended:
            entry.mark_started()

    def drop(self, uid: str) -> None:
        """A job is gone, or is no workload of its own: all that is held for it is given back."""
        # Out of the entries first: what is freed below must find pods that are nobody's.
        entry = self._entries.drop(uid)
        self._volumes.forget_job_volumes(uid)
        self._groups.forget_job(uid)
        self._requeue_claimants(uid)
        if entry is not None:
            self._admissions.drop_job(entry)

    def _requeue_claimants(self, uid: str) -> None:
        """A job is gone, or over: who waits for a claim that it was to have is looked at."""
        for other in self._devices.forget_job(uid):
            if other != uid:
                self._enqueue(other, 0.0)


def is_held(owner: JobView) -> bool:
    """Whether what is stored for it is held: until it is over; and of pods that are all gone until it is removed."""
    return owner.over in {"", GONE}


def _worth_a_look(before: JobView, after: JobView, *, admitted: bool) -> bool:
    """Whether a job changed in what is decided on; its pods' readiness counts only as all or not all.

    Since when it is suspended, or runs, is asked only of one that is to be resumed, or runs without being admitted.
    """
    return (
        _all_ready(before) != _all_ready(after)
        or _OF_JOB(before) != _OF_JOB(after)
        or [*map(_OF_POD_SET, before.pod_sets)] != [*map(_OF_POD_SET, after.pod_sets)]
        or (after.suspended is admitted and _since(before) != _since(after))
    )


def _since(owner: JobView) -> tuple[float | None, float | None]:
    return owner.suspended_at, owner.resumed_at


def _all_ready(owner: JobView) -> bool:
    return owner.ready >= owner.count > 0
