"""What the event of a Workload changes, and the answer to a write of one: what is stored in the API server wins."""

from kube import objects
from kube.informer import Event
from kube.objects import version_of
from kube.workloads import WorkloadObject
from ungater.cache.core import Core
from ungater.cache.held.admissions import Admissions
from ungater.cache.pod_groups import PodGroups
from ungater.cache.views import is_held
from ungater.model.workload_entry import ObservedWorkload, WorkloadEntry
from ungater.model.workload_spec import belongs
from ungater.model.workload_status import observed_of

# A watch that was cut lists again within seconds; a wrong guess would make a Workload that is still there.
UNSTORED = 30.0  # seconds after which a Workload that no watch tells of is taken to be deleted


class WorkloadEvents:
    """See the module."""

    def __init__(self, core: Core, admissions: Admissions, groups: PodGroups) -> None:
        self._core = core
        self._stores = core.stores
        self._entries = core.entries
        self._enqueue = core.enqueue
        self._clock = core.clock
        self._admissions = admissions
        self._pod_groups = groups
        self._unstored: dict[str, float] = {}  # by job: since when no watch tells of the Workload that we wrote

    def on_workload(self, event: Event[WorkloadObject]) -> None:
        """A Workload changed: by our own hand, which we know already, or by another's, whose entry then counts."""
        if not self._core.live:
            return
        workload = event.new or event.old
        if workload is None:
            return
        if event.old is not None and (event.new is None or event.old.metadata.uid != event.new.metadata.uid):
            # Its end was seen, so nothing old can come of it any more.
            self._entries.forget_removed(event.old.metadata.uid)
            self._pod_groups.cleared(event.key)
        entry = self._owner_of(workload)
        if entry is None or workload.metadata.name != entry.job.workload:
            return
        if event.new is None:
            entry.mark_deleted(workload.metadata.uid)
            # Another Workload of that name may be observed already, by
            # the answer to our own write: then this event is old news.
            if entry.observed is None or entry.observed.uid == entry.gone:
                self._note_deleted(entry)
                self._forget_workload(entry)
                self._enqueue(entry.id, 0.0)
            return
        # While a write is on its way its answer decides; what comes meanwhile is read when it ends (`written`).
        if not entry.writes.busy and not _is_known(entry, workload):
            self.saw_workload(entry, observed_of(workload))

    def _note_deleted(self, entry: WorkloadEntry) -> None:
        """Its Workload is gone, and not by us: count that, unless it went with those whose it was."""
        owners = entry.observed.owners if entry.observed is not None else frozenset()
        # Counted, since a tenant that deletes it over and over costs
        # a creation each time; the next one comes later each time.
        if not entry.removing and (entry.job.uid in owners or not owners.isdisjoint(entry.pods)):
            entry.writes.note_deleted(self._clock())

    def saw_workload(self, entry: WorkloadEntry, observed: ObservedWorkload) -> None:
        """Take over what the API server has of a Workload; where its admission is not what is held, it wins."""
        if observed.uid == entry.gone or self._entries.is_removed(observed.uid):
            return
        # Versions only grow: this is the echo of what was seen before.
        if entry.observed is not None and observed.version <= entry.observed.version:
            return
        entry.observe(observed)
        self._take_over(entry, observed)
        self._enqueue(entry.id, 0.0)

    def _take_over(self, entry: WorkloadEntry, observed: ObservedWorkload) -> None:
        if observed.admission is not None and not observed.admission.same_grant(entry.admission) and is_held(entry.job):
            self._admissions.hold_admission(entry, observed.admission)
        # A plan that is not stored yet is being written. Any other plan is stored no more: its Workload was created
        # again, or somebody removed the plan.
        if observed.nomination is None and not entry.writes.busy:
            self._admissions.drop_plan(entry)
        self._admissions.take_priority(entry)
        # Last: of one whose admission is not held yet no start is noted, and no other event would bring it.
        self._admissions.take_conditions(entry)

    def written(self, entry: WorkloadEntry, observed: ObservedWorkload | None) -> None:
        """A write ended: its answer counts, and then whatever came from the API server meanwhile.

        An answer about a Workload that was seen to be deleted comes too late.
        """
        # Something was asked for while the write was on its way: it is looked at now, with what the write left.
        if entry.writes.end_write():
            self._enqueue(entry.id, 0.0)
        if observed is not None and observed.uid != entry.gone:
            entry.observe(observed)
            self._take_over(entry, observed)
        # After the answer: the watch may have told of a later change
        # while the write was busy, and tells of it only once.
        latest = self._stores.workload(entry.key)
        if latest is not None and not _is_known(entry, latest) and belongs(latest, entry.job):
            self.saw_workload(entry, observed_of(latest))

    def judge_unstored(self) -> None:
        """Find Workloads that came and went while a watch was broken, of which no event tells; call at times.

        A watch that says nothing at all says nothing of them either: only what is older than the last change that it
        told of can be missing.
        """
        now, stored, reached = self._clock(), self._stores.workload, self._stores.workloads_reached()
        missing = [
            entry
            for entry in self._entries.values()
            if entry.observed is not None
            and entry.observed.version <= reached
            and not entry.writes.busy
            and stored(entry.key) is None
        ]
        self._unstored = {entry.id: self._unstored.get(entry.id, now) for entry in missing}
        for entry in missing:
            if now - self._unstored[entry.id] >= UNSTORED:
                del self._unstored[entry.id]
                self._note_deleted(entry)
                self._forget_workload(entry)
                self._enqueue(entry.id, 0.0)

    def found_gone(self, entry: WorkloadEntry) -> None:
        """The API server has no Workload of its any more, whatever a late watch says yet, also to a new entry."""
        if entry.observed is not None:
            uid, there = entry.observed.uid, self._stores.workload(entry.key)
            # The store has it still, so its end is yet to come, and must not be taken for that of the next one.
            if there is not None and there.metadata.uid == uid:
                self._entries.note_removed(uid)
            entry.mark_deleted(uid)
        self._forget_workload(entry)

    def _forget_workload(self, entry: WorkloadEntry) -> None:
        entry.forget_workload()
        self._admissions.drop_plan(entry)

    def came_back(self, entry: WorkloadEntry, workload: str) -> None:
        """The API server has the Workload of this uid after all: somebody had given it to another owner meanwhile."""
        entry.mark_deleted("")
        self._entries.forget_removed(workload)

    def removed(self, entry: WorkloadEntry) -> None:
        """Its Workload was deleted by us; whatever is still heard of that one is old, also by an entry made anew."""
        if entry.observed is not None:
            there = self._stores.workload(entry.key)
            # Of two owners whose Workloads have one name, one is not told of its end: it may have come already.
            if self._entries.of_workload(entry.key) is entry or (
                there is not None and there.metadata.uid == entry.observed.uid
            ):
                self._entries.note_removed(entry.observed.uid)
            entry.mark_deleted(entry.observed.uid)
        entry.forget_workload()

    def _owner_of(self, workload: WorkloadObject) -> WorkloadEntry | None:
        """Whose Workload it is: that of its controlling owner; of a group of pods, by its name; one that is known."""
        entry = self._entries.of_workload(objects.key(workload))
        if entry is None or belongs(workload, entry.job):
            return entry
        ours = entry.observed is not None and entry.observed.uid == workload.metadata.uid
        return entry if ours else None  # whatever somebody wrote on it since


def _is_known(entry: WorkloadEntry, workload: WorkloadObject) -> bool:
    """Whether this is no news, mostly the echo of our own write: to read its status costs more than all else of it."""
    seen = entry.observed
    return seen is not None and version_of(workload.metadata.resource_version) <= seen.version
