"""What the event of a Job or a JobSet changes."""

from crds.constants import JOB_CONTROLLER, JOB_SET_CONTROLLER
from kube import objects
from kube.informer import Event
from kube.parents import JobSet
from ungater.cache.charges.left_pods import LeftPods
from ungater.cache.charges.pod_charges import Charges
from ungater.cache.core import Core
from ungater.cache.pod_groups import PodGroups
from ungater.cache.pods import PodEvents
from ungater.cache.views import JobViews
from ungater.jobs.job import owner_of
from ungater.jobs.jobset import made_by, owner_of_jobset, parent_of
from ungater.model.job_view import controlled_by, id_of, identity
from ungater.model.workload_entry import WorkloadEntry

# Jobs and JobSets have a watch each, so a Job may be seen first. Ten seconds are enough for a watch that is late.
UNPROVED = 10.0  # seconds for which a Job is believed that names a JobSet nobody has seen


class JobEvents:
    """See the module."""

    def __init__(
        self,
        core: Core,
        views: JobViews,
        groups: PodGroups,
        pods: PodEvents,
        *,
        charges: Charges,
        left_pods: LeftPods,
    ) -> None:
        self._core = core
        self._keys = core.keys
        self._stores = core.stores
        self._queues = core.queues
        self._entries = core.entries
        self._owners = core.entries.owners
        self._wholes = core.entries.owners.wholes
        self._enqueue = core.enqueue
        self._clock = core.clock
        self._views = views
        self._pod_groups = groups
        self._pods = pods
        self._charges = charges
        self._left_pods = left_pods
        self._gated_orphans = core.entries.gated_orphans
        self._unproved: dict[str, float] = {}  # ids of Jobs whose JobSet was not seen: since when, by the clock

    def on_job(self, event: Event[objects.Job]) -> None:
        """A job came, changed or went."""
        if not self._core.live:
            return
        if event.old is not None and (event.new is None or event.new.metadata.uid != event.old.metadata.uid):
            # Dropped before the new one is taken in: a Job that was made again under its name starts with nothing.
            self._views.drop(id_of(event.old))
            self._forget_child(event.old)
            self._unproved.pop(id_of(event.old), None)
        if event.new is not None:
            self.set_job(event.new)

    def on_jobset(self, event: Event[JobSet]) -> None:
        """A JobSet came, changed or went."""
        if not self._core.live:
            return
        if event.old is not None and (event.new is None or event.new.metadata.uid != event.old.metadata.uid):
            self._views.drop(id_of(event.old))
        if event.new is not None:
            self.set_jobset(event.new)

    def set_job(self, job: objects.Job) -> None:
        """A Job is there, or changed."""
        parent = self._parent(job) or self._launched_by(job)
        # A tenant may rewrite owner references: the JobSet that it leaves must not count its pods on.
        if self._owners.parent(id_of(job)) not in {None, parent}:
            self._forget_child(job)  # it has another owner now
        if parent:
            self._views.drop(id_of(job))  # where it was taken for a workload of its own
            self._set_child(parent, job)
            return
        if job.spec.managed_by not in {"", JOB_CONTROLLER}:
            self._views.drop(id_of(job))  # another controller's, who makes its pods elsewhere, or not at all
            return
        uid = id_of(job)
        # Read before `release`: afterwards nothing says that they were a JobSet's.
        pods = tuple(self._stores.pods_of(uid)) if self._owners.parent(uid) is not None else ()
        for pod in pods:
            self._pods.remove_from_owner(pod, pod)  # a JobSet's until now
        # Between leaving and charging: a pod has to be charged for the owner that it has from here on.
        self._owners.release_pods(uid)
        self._views.observe_job(owner_of(job, self._keys, self._views.before(uid)))
        for pod in pods:
            self._charges.charge_pod(pod)
            self._left_pods.pay(pod, self._entries.entry_of_pod(pod))
            self._charges.note_stop(pod)  # `remove_from_owner` forgets that the pod was told to stop
            self._charges.note_arrival(pod)

    def _parent(self, job: objects.Job) -> str:
        """The id of the JobSet that made a Job; "" where none did, whatever the Job says.

        One that was not seen is believed in: watches tell of it before or after its Jobs. But for a Job that names a
        queue that ends after a while, as else any Job could run past its queue.
        """
        named, namespace = parent_of(job.metadata), job.metadata.namespace
        if named is None:
            return ""
        jobset = self._stores.jobset(f"{namespace}/{named.name}")
        # By uid: a JobSet that was made again under its name did not make this Job.
        if jobset is not None and jobset.metadata.uid == named.uid:
            believed = made_by(jobset, job.metadata)
        elif self._keys.queue_name in (job.metadata.labels or {}):
            believed = self._clock() - self._unproved.setdefault(id_of(job), self._clock()) < UNPROVED
        else:
            believed = True
        return identity(namespace, named.uid) if believed else ""

    def _launched_by(self, job: objects.Job) -> str:
        """The id of the owner whose launcher a Job makes; "" where it makes none."""
        controller = objects.controller_of(job.metadata)
        maker = (
            controlled_by(job.metadata.namespace, controller.kind, controller.api_version, controller.uid)
            if controller is not None
            else ""
        )
        told = self._wholes.told.get(maker)
        entry = self._entries.get(id_of(job))
        # A Job that holds something of its own keeps it: taken for a launcher, what it holds would be nobody's.
        if told is None or not told.makes(job, self._keys) or (entry is not None and entry.admission is not None):
            return ""
        return told.id if self._pod_groups.is_whole(told) else ""

    def judge_unproved(self) -> None:
        """Look again at Jobs that name a queue and a JobSet that nobody saw; to be called now and then."""
        now = self._clock()
        # No event comes when the time is up: the watch of JobSets has nothing to tell.
        for uid in [uid for uid, since in self._unproved.items() if now - since >= UNPROVED]:
            job = self._owners.jobs_of(self._owners.parent(uid) or "").get(uid)
            if job is not None and not self._parent(job):
                self._forget_child(job)
                self.set_job(job)

    def set_jobset(self, jobset: JobSet) -> None:
        """A JobSet is there, or changed, or one of its Jobs did."""
        uid = id_of(jobset)
        children = self._owners.jobs_of(uid)
        if jobset.spec.managed_by not in {"", JOB_SET_CONTROLLER}:
            self._views.drop(uid)
        elif jobset.spec.replicated_jobs:
            self._views.observe_job(owner_of_jobset(jobset, children.values(), self._keys, self._views.before(uid)))

    def _set_child(self, parent: str, job: objects.Job) -> None:
        """A Job that a JobSet made: its pods are the JobSet's."""
        new = self._owners.adopt(parent, job)
        entry = self._entries.get(parent)
        if entry is None:
            return
        if new:
            for pod in self._owners.pods_of_owner(id_of(job)):
                self._gated_orphans.forget_orphan(pod.metadata.uid)
                # It was a pod of nobody, and perhaps a candidate for eviction; now its JobSet answers for it.
                self._queues.holders.remove_pod(objects.key(pod))
                entry.pods[pod.metadata.uid] = pod
                self._charges.charge_pod(pod)
                self._charges.note_arrival(pod)
            self._enqueue(parent, self._pods.delay(entry))
        self._look_at_parent(entry)

    def _forget_child(self, job: objects.Job) -> None:
        parent = self._owners.disown(job)
        if parent is not None and (entry := self._entries.get(parent)) is not None:
            self._look_at_parent(entry)

    def _look_at_parent(self, entry: WorkloadEntry) -> None:
        jobset = self._stores.jobset(entry.job.key)
        if jobset is not None and id_of(jobset) == entry.id:
            self.set_jobset(jobset)

    def saw_job(self, job: objects.Job | JobSet) -> None:
        """Take over what the API server made of our own write."""
        if id_of(job) not in self._entries:
            return
        if isinstance(job, JobSet):
            self.set_jobset(job)
        else:
            self.set_job(job)
