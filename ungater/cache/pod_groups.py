"""Owners that are known by their pods alone: what a pod, a LeaderWorkerSet or an owner of several kinds changes."""

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from kube import objects
from kube.informer import Event
from kube.parents import ControllerRevision, LeaderWorkerSet
from kube.replicas import Counted, Service
from kube.resources import Resource
from queueing.queues.entry import Phase
from ungater.cache.core import Core
from ungater.cache.owners import NamedGroups
from ungater.cache.views import JobViews
from ungater.jobs.leaderworkerset import PREFIX as LEADERS
from ungater.jobs.leaderworkerset import has_pods, owner_of_group, revision_key, set_of
from ungater.jobs.pod_group import GONE, GROUP, POD, kind_as_stored, mark_of, of_pods, owner_key, owner_of_pods, served
from ungater.jobs.replica_counts import ReplicaCounts, maker_of
from ungater.model.admission import Admission
from ungater.model.job_view import JobView, controlled_by
from ungater.model.pod_slots import is_gated
from ungater.model.workload_entry import WorkloadEntry
from ungater.model.workload_spec import belongs
from ungater.reconcile import moves

UNSEEN = 10.0  # seconds for which pods wait for an owner that may tell how many they are
BARE = 10.0  # seconds for which an owner without pods keeps its place in a queue


class PodGroups:
    """See the module. ``batch``: seconds for which more pods are waited for."""

    def __init__(self, core: Core, views: JobViews, named: NamedGroups, batch: float) -> None:
        self._core = core
        self._keys = core.keys
        self._stores = core.stores
        self._queues = core.queues
        self._entries = core.entries
        self._owners = core.entries.owners
        self._wholes = core.entries.owners.wholes
        self._enqueue = core.enqueue
        self._guard = core.guard
        self._clock = core.clock
        self._views = views
        self._named = named
        self._gated_orphans = core.entries.gated_orphans
        self._batch = batch
        self._leader_set = core.stores.leader_set
        self._revisions: dict[tuple[str, str], ControllerRevision] = {}  # by LeaderWorkerSet, and hash
        self._unled: dict[str, set[str]] = {}  # by LeaderWorkerSet that was not seen: groups that have pods
        self._leftover: dict[
            str, list[objects.Pod]
        ] = {}  # Workloads that are to be gone, and pods of their owners that came before that was seen

    # --- pods ----------------------------------------------------------------------------------------------------

    def gather(self, pod: objects.Pod, *, waits: bool = True) -> None:
        """Where a pod that no Job owns is the first one seen of its owner, make an entry; more may come in a moment.

        ``waits``: for an owner that tells how many pods there are, and that was not seen yet.
        """
        key = part = owner_key(pod, self._keys)
        serves = self._core.served.serves(pod.metadata.namespace)
        if key in self._entries or not serves or not served(pod, self._keys):
            return
        if (maker := maker_of(pod, self._keys)) != "":
            told = self._wholes.told.get(maker)
            known = told is not None and (maker in self._wholes.ids or told.role(pod) in told.replicas.counts)
            # Pods of one owner are one workload only if none of them was placed apart before the owner was seen.
            if told is not None and known and self.is_whole(told):
                key = self._owners.take_part(maker, part)
            elif told is None and waits and self._may_come(pod, maker):
                return
        if (entry := self._entries.get(key)) is not None:
            entry.pods[pod.metadata.uid] = pod
            return
        pods = {other.metadata.uid: other for other in (*self._owners.pods_of_owner(key), pod)}
        own = self._own_of(key, pods.values())
        # Made again with the name that is free: the view's Workload,
        # its key and what pods are marked with follow from it.
        if own is not None and (name := self._views.free_name(own, pods.values())) != own.workload:
            own = self._own_of(key, pods.values(), workload=name)
        # As after the first look, which takes the view made here for the kinds that it was placed by. Others would be
        # read a second time at a start for nothing.
        stored = self._views.stored_for(own) if own is not None and _keeps_kinds(own) else None
        if own is not None and stored is not None and stored.admission is not None:
            placed = self._as_placed(own)
            counts, before = self._counts_of(placed, stored.admission), placed if placed is not own else None
            own = self._own_of(key, pods.values(), before, counts, workload=own.workload)
        if own is not None and not any(self._is_own(own, other) for other in pods.values()):
            return  # all were let go for another workload, and run on without it (`ungater.cache.charges.orphans`)
        if own is None:
            self._unled.setdefault(set_of(key), set()).add(key)
            return
        # The old Workload's slots may be another's already: these pods wait until its end is seen.
        if (waiting := self._leftover.get(own.workload_key)) is not None:
            waiting.append(pod)
            return
        self._entries.groups[key] = own.workload_key
        # Pods of a group that come after it was placed can be of no other kind than those that it was placed by.
        early = own.kind == GROUP and not own.kinds and len(pods) < own.full
        self._views.add_job(own, after=self._batch if (own.open_ended or early) and self._core.live else 0.0)
        self._entries[key].pods.update(pods)

    def _may_come(self, pod: objects.Pod, maker: str) -> bool:
        """Whether an owner that was not seen may be soon: it is watched, and its pods came a moment ago."""
        controller = objects.controller_of(pod.metadata)
        group = controller.api_version.partition("/")[0] if controller is not None else ""
        if not self._core.live or controller is None or not self._stores.reads(controller.kind, group):
            return False
        self._wholes.unseen.setdefault(maker, (self._clock(), set()))[1].add(owner_key(pod, self._keys))
        return True

    def _is_own(self, own: JobView, pod: objects.Pod) -> bool:
        """Whether a pod waits for its owner's workload, or was let go for it; a LeaderWorkerSet's is made anew else."""
        if is_gated(pod, self._keys.gate) or own.id.startswith(LEADERS):
            return True
        return mark_of(pod, self._keys) == own.workload

    def pod_gone(self, key: str) -> None:
        """A pod is gone whose owner has this key."""
        if (unled := self._unled.get(set_of(key))) is not None and not any(self._stores.pods_of(key)):
            unled.discard(key)
            if not unled:
                del self._unled[set_of(key)]

    # --- their Workloads -----------------------------------------------------------------------------------------

    def leave_out(self, workload: str) -> None:
        """A Workload, by its key, whose pods are all gone: what it holds is nobody's, and it is to be removed.

        Until that was seen (`cleared`), pods of its owner wait: they would find slots that somebody else may have.
        """
        self._leftover[workload] = []

    def serves(self, workload: str) -> bool:
        """Whether a job is known for the Workload of this key, or its removal is under way."""
        return self._entries.knows_workload(workload) or workload in self._leftover

    def without_pods(self, workload: objects.ObjectMeta) -> bool:
        """Whether a Workload that nobody is known for was made for pods; not where their owner was not seen."""
        return of_pods(workload) and not any(has_pods(workload, groups) for groups in self._unled.values())

    def cleared(self, workload: str) -> None:
        """A Workload is seen to be gone: pods of its owner that came meanwhile have another made."""
        for pod in self._leftover.pop(workload, ()):
            there = self._stores.pods_of(owner_key(pod, self._keys))
            if any(other.metadata.uid == pod.metadata.uid for other in there):
                self.gather(pod)

    # --- looking at them -----------------------------------------------------------------------------------------

    def regroup(self, entry: WorkloadEntry) -> bool:
        """Look at the pods of an owner that is known by them alone; False where it is gone, and forgotten now."""
        if entry.id not in self._entries.groups or entry.own is None:
            return True
        # Without pods and without a Workload nothing is left to hold or to remove.
        if not entry.pods and entry.observed is None:
            self._views.drop(entry.id)
            return False
        # Which kinds a group has is remembered for what it was placed by. Of one that waits its pods tell, as they do
        # after a restart: else one of two kinds that went would be asked for until then, and never after it.
        placed = entry.admission is not None or (entry.observed is not None and entry.observed.admission is not None)
        before = self._as_placed(entry.own) if placed else replace(entry.own, kinds=False)
        own = self._own_of(entry.id, entry.pods.values(), before, self._counts(entry))
        # A LeaderWorkerSet of the same name with another uid: its
        # Workload has another name, and the old one's slots are not its.
        if own is not None and own.workload != entry.own.workload:
            return self._replaced(entry)
        waits = own is not None and (own.queue or own.id.startswith(LEADERS) or moves.under_way(entry))
        if own is not None and own.over == GONE and waits and own.kind not in {POD, GROUP}:
            own = self._maybe_gone(entry, own)
        elif entry.pods:
            entry.have_pods()
        # The job as it is to be looked at while it is moved, also where its pods do not tell how many they are.
        asked = own or entry.own
        seen = moves.one_for_one(entry, asked, self._keys.workload, self._clock())
        if seen is not asked:
            self._enqueue(entry.id, moves.AWAITED)  # no event tells that a successor does not come
        self._views.renew(entry, seen)
        return True

    def _replaced(self, entry: WorkloadEntry) -> bool:
        """A LeaderWorkerSet was made anew under its name. First what is held for the old one is given back."""
        if entry.observed is None or entry.own is None:
            self._views.drop(entry.id)
            for pod in tuple(entry.pods.values()):
                self.gather(pod)
            return False
        self._views.renew(entry, replace(entry.own, over=GONE))
        return True

    def _as_placed(self, own: JobView) -> JobView:
        """Pods of several kinds with all kinds that they were placed by.

        After a start no pod may be seen of one: it was deleted, and is made again.
        """
        workload = self._stores.workload(own.workload_key) if _keeps_kinds(own) else None
        if workload is None or workload.status.admission is None or not belongs(workload, own):
            return own
        known, asked = {one.name: one for one in own.pod_sets}, workload.spec.pod_sets
        names = {one.name for one in asked}
        # Only where the spec seen is that which it was placed by: the watch may be behind.
        if names <= known.keys() or names != {one.name for one in workload.status.admission.pod_set_assignments}:
            return own
        found = [known.get(one.name) or kind_as_stored(one, self._keys) for one in asked]
        kinds = [replace(one, count=of.count, full=of.count) for one, of in zip(found, asked, strict=True) if one]
        return replace(own, pod_sets=tuple(kinds), kinds=True) if len(kinds) == len(asked) else own

    def _counts(self, entry: WorkloadEntry) -> Mapping[str, int]:
        """How many pods each pod set of a job has that is admitted."""
        if entry.observed is not None and entry.observed.admission is not None:
            return self._counts_of(entry.job, entry.observed.admission)
        # Decided, and not known to be stored: a pod that comes while that is written does not change what is.
        queued = self._queues.entries.get(entry.key) if _keeps_kinds(entry.job) else None
        grant = queued.grant if queued is not None and queued.phase is Phase.ADMITTED else None
        return grant.counts if grant is not None else {}

    def _counts_of(self, job: JobView, admission: Admission) -> Mapping[str, int]:
        """How many pods each pod set has by the Workload with this admission: some may not be there at a start."""
        # At a start a kind of which no pod is listed yet would count as none, and its slots would go back.
        if not _keeps_kinds(job):
            return {}
        counts = {part.name: part.count for part in admission.parts}
        workload = self._stores.workload(job.workload_key)
        asked = {one.name: one.count for one in workload.spec.pod_sets} if workload is not None else {}
        # The admission is known from its own write, and the spec from the watch, which may be behind: a group whose
        # second kind came meanwhile was placed by kinds that the spec seen does not name yet.
        return asked if asked.keys() == counts.keys() else counts

    def _own_of(
        self,
        key: str,
        pods: Iterable[objects.Pod],
        before: JobView | None = None,
        stored: Mapping[str, int] | None = None,
        *,
        workload: str = "",
    ) -> JobView | None:
        """The view of an owner that is known by its pods; None where what describes them was not seen yet.

        ``workload``: the name of its Workload, where that is not the usual one.
        """
        found = list(pods)
        whole = self._leader_set(set_of(key)) if key.startswith(LEADERS) else None
        if whole is None and key.startswith(LEADERS):  # its Workload goes with it; pods that it left behind run on
            return replace(before, over="Deleted") if before is not None else None
        if whole is None or not found:
            if not found and before is None:
                return None
            told = self._wholes.counts_of_owner(key)
            return owner_of_pods(key, found, self._keys, before, stored, told, workload=workload)
        return owner_of_group(key, found, whole, self._keys, before, self._revision, workload=workload)

    def _revision(self, whole: str, named: str) -> ControllerRevision | None:
        return self._revisions.get((whole, named))

    def _maybe_gone(self, entry: WorkloadEntry, own: JobView) -> JobView:
        """Between the end of its pods and the next ones an owner keeps its Workload for a moment, if it has one."""
        if entry.observed is None:
            return own
        if entry.lack_pods(self._clock()) >= BARE:
            return own
        # No event tells that its next pods do not come.
        self._enqueue(entry.id, BARE)
        # An owner that says itself how many pods it has keeps that number; of the others nobody knows how many come.
        pod_sets = tuple([replace(one, count=0) for one in own.pod_sets]) if own.open_ended else own.pod_sets
        return replace(own, over="", ready=0, pod_sets=pod_sets)

    # --- LeaderWorkerSets ----------------------------------------------------------------------------------------

    def expect_leader_sets(self, coming: Iterable[LeaderWorkerSet]) -> None:
        """Look these up too, which are not in the cluster yet: a dry run has their pods come."""
        there, new = self._leader_set, {objects.key(one): one for one in coming}
        self._leader_set = lambda key: new.get(key) or there(key)

    def on_leaders(self, event: Event[LeaderWorkerSet]) -> None:
        """A LeaderWorkerSet came, changed or went."""
        whole = event.new
        if not self._core.live or whole is None:
            return
        for group in sorted(self._unled.pop(event.key, ())):
            for pod in self._stores.pods_of(group):
                self.gather(pod)
        self._look_at_groups(event.key)

    def on_revision(self, event: Event[ControllerRevision]) -> None:
        """A revision of a LeaderWorkerSet came or went. Its data never change; its labels, which say whose, may."""
        before, named = (revision_key(one.metadata) if one is not None else None for one in (event.old, event.new))
        if event.old is not None and before is not None and before != named:
            known = self._revisions.get(before)
            if known is not None and known.metadata.uid == event.old.metadata.uid:  # not of another one labelled so
                del self._revisions[before]
        if event.new is not None and named is not None:
            self._revisions[named] = event.new
        for whole in {one[0]: None for one in (before, named) if one is not None} if self._core.live else ():
            self._look_at_groups(whole)

    def _look_at_groups(self, whole: str) -> None:
        """Have the groups of a LeaderWorkerSet looked at."""
        head = f"{LEADERS}{whole}/"
        for uid in self._entries.groups:
            if uid.startswith(head):
                self._enqueue(uid, 0.0)

    # --- PodGroups of Kubernetes itself ---------------------------------------------------------------------------

    def on_native(self, event: Event[objects.PodGroup]) -> None:
        """A PodGroup came, changed or went: the jobs that name it are looked at. Its status is kube-scheduler's."""
        old, new = event.old, event.new
        # kube-scheduler writes the status of a PodGroup with each try.
        if old is None or new is None or old.spec != new.spec:
            for uid in self._named.naming(event.key):
                with self._guard("workload", uid):
                    self._views.review(uid)

    # --- owners that tell how many pods they have ------------------------------------------------------------------

    def on_replicated(self, kind: Resource, event: Event[Counted]) -> None:
        """An owner came, changed or went that tells how many pods there are of each kind."""
        one = event.new or event.old
        if one is None:
            return
        with self._guard(kind.kind, event.key):
            namespace = one.metadata.namespace
            told = ReplicaCounts.read_counts(one, kind, self._keys) if event.new is not None else None
            uid = controlled_by(namespace, kind.kind, kind.api_version, one.metadata.uid)
            concerned = {uid}
            if isinstance(one, Service):
                there = one if event.new is not None else None
                concerned |= {*self._wholes.note_revision(uid, there, namespace)}  # another is the newest, or was
            if told is not None:
                self._wholes.told[uid] = told
            elif isinstance(one, Service):
                self._wholes.told.pop(uid, None)
            elif event.new is None:
                self._wholes.mark_deleted(uid, has_pods=uid in self._entries)
            if self._core.live:
                self._gather_unseen(uid)
                for each in sorted(concerned & self._entries.keys()):
                    self._enqueue(each, 0.0)

    def judge_unseen(self, after: float = UNSEEN) -> None:
        """Take pods for what they tell themselves whose owner was not seen in a while; to be called now and then."""
        now = self._clock()
        for uid in [uid for uid, (since, _) in self._wholes.unseen.items() if now - since >= after]:
            self._gather_unseen(uid)

    def _gather_unseen(self, uid: str) -> None:
        _, parts = self._wholes.unseen.pop(uid, (0.0, ()))
        for pod in [pod for key in sorted(parts) for pod in self._stores.pods_of(key)]:
            self.gather(pod, waits=False)
            if self._entries.entry_of_pod(pod) is None:
                self._gated_orphans.remember_pod(pod)

    def is_whole(self, told: ReplicaCounts) -> bool:
        """Whether the pods of an owner are one workload; not where some were placed before it was seen."""
        if told.has_one_kind or told.id in self._wholes.ids:
            return True
        parts = (told.id, *(f"{told.id}/{kind}" for kind in told.replicas.counts))
        stored = [self._stores.workload(f"{told.namespace}/{name}") for name in told.workloads]
        # Stored Workloads decide too: after a restart the pods may not be listed yet, but are held apart.
        names = {one.name for there in stored if there is not None for one in there.spec.pod_sets}
        apart = (
            any(part in self._entries for part in parts)
            or not names <= set(told.replicas.counts)
            or any(
                mark_of(pod, self._keys) not in {None, *told.workloads}
                for part in parts
                for pod in self._stores.pods_of(part)
            )
        )
        if not apart:
            self._wholes.ids.add(told.id)
        return not apart


def _keeps_kinds(job: JobView) -> bool:
    """Whether a job stays as it was placed, whatever comes: several kinds, and a group also where all are alike."""
    return job.kinds or job.kind == GROUP
