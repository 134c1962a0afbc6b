"""All entries, and the ways to find one: by the id of its job, by the key of its Workload, by a pod of it."""

from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView

from crds.constants import Keys
from engine.reservation_key import HolderKey
from kube.objects import Pod
from ungater.cache.owners import GatedOrphans, PodOwners
from ungater.model.job_view import JobView
from ungater.model.workload_entry import WorkloadEntry

REMOVED = 10_000  # Workloads that were deleted, and of which something may still be heard


class Entries(Mapping[str, WorkloadEntry]):
    """By id of the job (`JobView.id`). ``groups``: owners that are known by their pods alone, with their Workloads.

    ``serves``: whether a namespace is served here.
    """

    def __init__(self, keys: Keys, pods_of: Callable[[str], Iterable[Pod]], serves: Callable[[str], bool]) -> None:
        self.owners = PodOwners(keys, pods_of)
        self.gated_orphans = GatedOrphans(keys, self.owners.wholes, serves)
        self.groups: dict[str, str] = {}  # by id: the key of the Workload
        self._by_id: dict[str, WorkloadEntry] = {}
        self._ids: dict[HolderKey, str] = {}  # of all owners, by key of the Workload
        self._removed: dict[str, None] = {}  # uids of Workloads that we deleted, whose end was not seen yet

    def __getitem__(self, uid: str) -> WorkloadEntry:
        return self._by_id[uid]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_id)

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, uid: object) -> bool:
        return uid in self._by_id

    def keys(self) -> KeysView[str]:
        """All ids."""
        return self._by_id.keys()

    def items(self) -> ItemsView[str, WorkloadEntry]:
        """Ids and entries."""
        return self._by_id.items()

    def values(self) -> ValuesView[WorkloadEntry]:
        """All entries."""
        return self._by_id.values()

    def of_workload(self, key: HolderKey) -> WorkloadEntry | None:
        """The job of a workload, by the workload's key; None for what is held in another role."""
        return self._by_id.get(self._ids.get(key, ""))

    def entry_of_pod(self, pod: Pod) -> WorkloadEntry | None:
        """The job that a pod belongs to."""
        return self._by_id.get(self.owners.owner_of_pod(pod))

    def knows_workload(self, workload: str) -> bool:
        """Whether a job is known for the Workload of this key."""
        return workload in self._ids

    def add(self, owner: JobView, own: JobView) -> WorkloadEntry:
        """A new entry; ``owner``: the job as it is to be looked at, ``own``: as it is."""
        entry = self._by_id[owner.id] = WorkloadEntry(owner, own=own)
        self._ids[entry.key] = owner.id
        return entry

    def rename(self, entry: WorkloadEntry, own: JobView, job: JobView) -> None:
        """Its Workload has another name, which the views tell."""
        # Its key may be another job's by now: two owners may have asked for one name.
        if self._ids.get(entry.key) == entry.id:
            del self._ids[entry.key]
        entry.set_view(own, job)
        self._ids[entry.key] = entry.id
        if entry.id in self.groups:
            self.groups[entry.id] = entry.key

    def drop(self, uid: str) -> WorkloadEntry | None:
        """A job is gone; returns its entry."""
        entry = self._by_id.pop(uid, None)
        self.groups.pop(uid, None)
        self.owners.wholes.forget_owner(uid)
        if entry is not None and self._ids.get(entry.key) == uid:
            del self._ids[entry.key]
        return entry

    # --- Workloads that were deleted -----------------------------------------------------------------------------

    def note_removed(self, workload: str) -> None:
        """A Workload of this uid was deleted, by us or unseen: what is still heard of it is old, whoever asks."""
        self._removed[workload] = None
        # Bounded: a tenant who deletes Workloads without end must not fill the memory.
        if len(self._removed) > REMOVED:
            del self._removed[next(iter(self._removed))]

    def is_removed(self, workload: str) -> bool:
        """Whether the Workload of this uid was deleted, and nothing was seen of that yet."""
        return workload in self._removed

    def forget_removed(self, workload: str) -> None:
        """The Workload of this uid was seen to be gone."""
        self._removed.pop(workload, None)
