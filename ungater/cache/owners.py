"""Whose pods are whose, where the owner that a pod names is not the job that it belongs to; and pods of nobody.

And who shares a PodGroup of Kubernetes itself with whom.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import islice

from crds.constants import Keys
from kube import objects
from ungater.jobs.native_groups import groups_of
from ungater.jobs.pod_group import owner_key
from ungater.jobs.replica_counts import ReplicatedOwners, maker_of
from ungater.model.job_view import id_of
from ungater.model.pod_slots import is_gated
from ungater.model.workload_entry import WorkloadEntry

MOST_IN_GROUP = 64  # workloads of one native PodGroup


class PodOwners:
    """The pods of a JobSet's Jobs are the JobSet's, as are those of an owner that tells how many it has of each kind.

    ``pods_of_owner``: the pods by the key of the owner that they name (`ungater.jobs.pod_group.owner_key`). ``wholes``:
    the owners that tell how many pods they have.
    """

    def __init__(self, keys: Keys, pods_of: Callable[[str], Iterable[objects.Pod]]) -> None:
        self._keys = keys
        self._named = pods_of
        self.wholes = ReplicatedOwners()
        self._children: dict[str, dict[str, objects.Job]] = {}  # Jobs by the id of who made them, and theirs
        self._parents: dict[str, str] = {}  # the other way round; also of Jobs that are gone before their pods

    def owner_of_pod(self, pod: objects.Pod) -> str:
        """The id of the job that a pod belongs to, whether that is served or not."""
        key = owner_key(pod, self._keys)
        return self._parents.get(key, key)

    def pods_of_owner(self, uid: str) -> Iterable[objects.Pod]:
        """The pods of an owner and of its Jobs."""
        # Sorted: parts are a set, and equal histories have to see pods in one order.
        keys = (uid, *self._children.get(uid, ()), *sorted(self.wholes.parts.get(uid, ())))
        return (pod for one in keys for pod in self._named(one))

    def jobs_of(self, uid: str) -> Mapping[str, objects.Job]:
        """The Jobs that an owner made, by their ids."""
        return self._children.get(uid, {})

    def parent(self, uid: str) -> str | None:
        """The id of who made a Job, which may be gone by now; None where it is nobody's."""
        return self._parents.get(uid)

    def adopt(self, parent: str, job: objects.Job) -> bool:
        """A Job that ``parent`` made: its pods are the parent's. True where that was not known."""
        uid = id_of(job)
        new = uid not in self._parents
        self._parents[uid] = parent
        self._children.setdefault(parent, {})[uid] = job
        return new

    def disown(self, job: objects.Job) -> str | None:
        """A Job is gone, or somebody else's; returns the id of who made it, None where nobody did."""
        uid = id_of(job)
        parent = self._parents.get(uid, "")
        children = self._children.get(parent, {})
        if children.pop(uid, None) is None:
            return None
        if not children:
            del self._children[parent]
        self.forget_owner(uid)
        return parent

    def release_pods(self, uid: str) -> None:
        """The pods of a Job are its own from now on."""
        self._parents.pop(uid, None)

    def forget_owner(self, uid: str) -> None:
        """Forget whose a Job was, once it and its pods are gone: watches may tell of the pods later."""
        parent = self._parents.get(uid)
        # Pods may outlive their Job in the watch: forgotten sooner,
        # they would be taken for pods of a Job that nobody serves.
        if parent is not None and uid not in self._children.get(parent, ()) and not any(self._named(uid)):
            del self._parents[uid]
            if (parts := self.wholes.parts.get(parent)) is not None:
                parts.discard(uid)
                if not parts:
                    del self.wholes.parts[parent]

    def take_part(self, whole: str, part: str) -> str:
        """Pods of this key are those of a whole; its id."""
        if part != whole:
            self._parents[part] = whole
            self.wholes.parts.setdefault(whole, set()).add(part)
        return whole


class GatedOrphans:
    """Gated pods that no served job owns, by uid; None where that was told already.

    ``serves``: whether a namespace is served here.
    """

    def __init__(self, keys: Keys, wholes: ReplicatedOwners, serves: Callable[[str], bool]) -> None:
        self._keys = keys
        self._wholes = wholes
        self._serves = serves
        self.pods: dict[str, objects.Pod | None] = {}

    def remember_pod(self, pod: objects.Pod) -> None:
        """Remember a gated pod whose owner is no job that is served, so that somebody tells why it stays gated."""
        if not is_gated(pod, self._keys.gate) or pod.metadata.deletion_timestamp is not None:
            return
        if not self._serves(pod.metadata.namespace):
            return  # the gate is Kueue's there, and so is the pod
        # Its owner may be seen in a moment; a message before that would be wrong.
        if (waiting := self._wholes.unseen.get(maker_of(pod, self._keys))) is not None and owner_key(
            pod, self._keys
        ) in waiting[1]:
            return
        # Not replaced: None says that this was reported, and each event would report it again.
        self.pods.setdefault(pod.metadata.uid, pod)

    def forget_orphan(self, uid: str) -> None:
        """A pod is gone, or a served job's."""
        self.pods.pop(uid, None)


class NamedGroups:
    """Who names which PodGroup of Kubernetes itself (scheduling.k8s.io).

    kube-scheduler lets no pod of a group go while one of them waits behind a gate. So of two workloads of one group
    that both wait neither is placed: each would hold the other's pods for as long as it finds no room. One that has its
    place already goes on, as after a rolling update. A group is of `MOST_IN_GROUP` workloads at most, so that its
    events cost no more than they concern.

    ``entry_of``: by the id of a job; ``enqueue(uid, after)`` has one looked at.
    """

    def __init__(self, entry_of: Callable[[str], WorkloadEntry | None], enqueue: Callable[[str, float], None]) -> None:
        self._entry_of = entry_of
        self._enqueue = enqueue
        self._naming: dict[str, dict[str, None]] = {}  # by group: the ids of the jobs that name it
        self._of: dict[str, frozenset[str]] = {}  # the other way round

    def remember_job(self, entry: WorkloadEntry) -> None:
        """A job is there, changed, or is over."""
        now = frozenset() if entry.job.over else groups_of(entry.job)
        before = self._of.get(entry.id, frozenset())
        if now == before:
            return
        self._forget_groups(entry.id, before - now)
        for group in now - before:
            # Before this one is added: it is looked at by its own event.
            for other in self.naming(group):
                self._enqueue(other, 0.0)  # it may be told of this one
            self._naming.setdefault(group, {})[entry.id] = None
        if now:
            self._of[entry.id] = now

    def forget_job(self, uid: str) -> None:
        """A job is gone."""
        self._forget_groups(uid, self._of.get(uid, frozenset()))

    def _forget_groups(self, uid: str, groups: frozenset[str]) -> None:
        left = self._of.pop(uid, frozenset()) - groups
        if left:
            self._of[uid] = left
        for group in groups:
            naming = self._naming.get(group, {})
            naming.pop(uid, None)
            if not naming:
                self._naming.pop(group, None)
            for other in self.naming(group):
                self._enqueue(other, 0.0)  # one that was too many may be the next now

    def naming(self, group: str) -> tuple[str, ...]:
        """The ids of the jobs that name a group, of too many the first."""
        # In the order in which they came: a workload that joins later cannot push out one that was counted.
        return tuple(islice(self._naming.get(group, ()), MOST_IN_GROUP))

    def group_hindrance(self, entry: WorkloadEntry) -> str | None:
        """Why a job is given nothing beside others of its groups; None where it may be."""
        for group in sorted(self._of.get(entry.id, ())):
            name, naming = group.partition("/")[2], self.naming(group)
            # Past the limit a workload waits with that as its reason, or
            # one tenant's pods would have thousands looked at.
            if entry.id not in naming:
                return f"more than {MOST_IN_GROUP} workloads share PodGroup {name}: give each a PodGroup of its own"
            for uid in naming:
                other = self._entry_of(uid)
                if other is None or other is entry:
                    continue
                if other.admission is None and not other.job.over and other.job.count > 0:
                    return (
                        f"PodGroup {name} is also that of {other.job.called}, and kube-scheduler binds none of its "
                        "pods while one of them waits: give each workload a PodGroup of its own"
                    )
        return None
