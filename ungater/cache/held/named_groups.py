"""Who names which PodGroup of Kubernetes itself (scheduling.k8s.io).

Rules
- kube-scheduler lets no pod of a group go while one of them waits behind a gate. So of two workloads of one group that
  both wait neither is placed: each would hold the other's pods for as long as it finds no room. One that has its place
  already goes on, as after a rolling update.
- A group is of `MOST` workloads at most, so that its events cost no more than they concern.
"""

from typing import Final

from ungater.cache.core import Core
from ungater.jobs.native_groups import groups_of
from ungater.model.workload_entry import WorkloadEntry

MOST: Final = 64


class NamedGroups:
    """See the module's rules."""

    def __init__(self, core: Core) -> None:
        self._entries = core.entries
        self._enqueue = core.enqueue
        self._naming: dict[str, dict[str, None]] = {}  # by group: the ids of the jobs that name it
        self._of: dict[str, frozenset[str]] = {}  # the other way round

    def note(self, entry: WorkloadEntry) -> None:
        """A job is there, changed, or is over."""
        now = frozenset() if entry.job.over else groups_of(entry.job)
        before = self._of.get(entry.id, frozenset())
        if now == before:
            return
        self._leave(entry.id, before - now)
        for group in now - before:
            naming = self._naming.setdefault(group, {})
            for other in naming:
                self._enqueue(other, 0.0)  # it may be told of this one
            if len(naming) < MOST:
                naming[entry.id] = None
        if now:
            self._of[entry.id] = now

    def forget(self, uid: str) -> None:
        """A job is gone."""
        self._leave(uid, self._of.get(uid, frozenset()))

    def _leave(self, uid: str, groups: frozenset[str]) -> None:
        left = self._of.pop(uid, frozenset()) - groups
        if left:
            self._of[uid] = left
        for group in groups:
            naming = self._naming.get(group, {})
            naming.pop(uid, None)
            if not naming:
                self._naming.pop(group, None)
            for other in naming:
                self._enqueue(other, 0.0)

    def naming(self, group: str) -> tuple[str, ...]:
        """The ids of the jobs that name a group."""
        return tuple(self._naming.get(group, ()))

    def hindrance(self, entry: WorkloadEntry) -> str | None:
        """Why a job is given nothing beside others of its groups; None where it may be."""
        for group in sorted(self._of.get(entry.id, ())):
            name, naming = group.partition("/")[2], self._naming.get(group, {})
            if entry.id not in naming:
                return f"PodGroup {name} is of more than {MOST} workloads: give each a PodGroup of its own"
            for uid in naming:
                other = self._entries.get(uid)
                if other is not None and other is not entry and _waits(other):
                    return (
                        f"PodGroup {name} is also that of workload {other.job.workload}, and kube-scheduler lets none "
                        "of its pods go while one of them waits: give each workload a PodGroup of its own"
                    )
        return None


def _waits(entry: WorkloadEntry) -> bool:
    return entry.admission is None and not entry.job.over and entry.job.count > 0
