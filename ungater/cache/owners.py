"""Whose pods are whose, where the owner that a pod names is not the job that it belongs to; and pods of nobody."""

from collections.abc import Callable, Iterable, Mapping

from crds.constants import Keys
from kube import objects
from ungater.jobs.pod_group import owner_key
from ungater.jobs.replica_counts import ReplicatedOwners, maker_of
from ungater.model.job_view import id_of
from ungater.model.pod_slots import is_gated


class PodOwners:
    """The pods of a JobSet's Jobs are the JobSet's, as are those of an owner that tells how many it has of each kind.

    ``pods_of``: the pods by the key of the owner that they name (`ungater.jobs.pod_group.owner_key`). ``wholes``: the
    owners that tell how many pods they have.
    """

    def __init__(self, keys: Keys, pods_of: Callable[[str], Iterable[objects.Pod]]) -> None:
        self._keys = keys
        self._named = pods_of
        self.wholes = ReplicatedOwners()
        self._children: dict[str, dict[str, objects.Job]] = {}  # Jobs by the id of who made them, and theirs
        self._parents: dict[str, str] = {}  # the other way round; also of Jobs that are gone before their pods

    def of(self, pod: objects.Pod) -> str:
        """The id of the job that a pod belongs to, whether that is served or not."""
        key = owner_key(pod, self._keys)
        return self._parents.get(key, key)

    def pods_of(self, uid: str) -> Iterable[objects.Pod]:
        """The pods of an owner and of its Jobs."""
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
        self.forget(uid)
        return parent

    def release(self, uid: str) -> None:
        """The pods of a Job are its own from now on."""
        self._parents.pop(uid, None)

    def forget(self, uid: str) -> None:
        """Forget whose a Job was, once it and its pods are gone: watches may tell of the pods later."""
        parent = self._parents.get(uid)
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
    """Gated pods that no served job owns, by uid; None where that was told already."""

    def __init__(self, keys: Keys, wholes: ReplicatedOwners) -> None:
        self._keys = keys
        self._wholes = wholes
        self.pods: dict[str, objects.Pod | None] = {}

    def note(self, pod: objects.Pod) -> None:
        """Remember a gated pod whose owner is no job that is served, so that somebody tells why it stays gated."""
        if not is_gated(pod, self._keys.gate) or pod.metadata.deletion_timestamp is not None:
            return
        if (waiting := self._wholes.unseen.get(maker_of(pod, self._keys))) is not None and owner_key(
            pod, self._keys
        ) in waiting[1]:
            return
        self.pods.setdefault(pod.metadata.uid, pod)

    def forget(self, uid: str) -> None:
        """A pod is gone, or a served job's."""
        self.pods.pop(uid, None)
