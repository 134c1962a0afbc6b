"""PodDisruptionBudgets, told to queueing: who could not be evicted anyway is not chosen as a victim.

Rules
- A budget counts those pods of a workload that it selects, that are bound and have not ended; a pod that is on its way
  out is not asked for again, so it counts no more.
- A pod that two budgets select can be evicted by nobody: its workload has to wait for an administrator.
- Nothing is looked at where a namespace has no budget. Else a workload is looked at again when its pods changed, and
  everybody of the namespace when a budget's selector did.
"""

from collections import Counter
from collections.abc import Iterable

from engine.cluster.filters import selects
from engine.model import Requirement
from kube.budgets import PodDisruptionBudget
from kube.informer import Event
from kube.objects import Pod
from kube.pods import convert
from queueing.queues.pdb import Takes
from ungater.cache.cache import Cache
from ungater.model.pod_slots import finished

TWICE = "(two budgets of one pod)"  # no legal name; nothing is ever allowed of it

Selector = tuple[Requirement, ...] | None


class BudgetWatch:
    """See the module's rules. `refresh` brings queueing up to date, before it decides."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._selectors: dict[str, dict[str, Selector]] = {}  # by namespace and key of the budget
        self._keyed: dict[str, str] = {}  # uid of a job -> key of its workload
        self._dirty: set[str] = set()  # uids of jobs
        self._reselected: set[str] = set()  # namespaces

    def on_budget(self, event: Event[PodDisruptionBudget]) -> None:
        """A budget came, changed or went."""
        namespace, _, _ = event.key.partition("/")
        budgets, observed = self._cache.queues.budgets, self._selectors.setdefault(namespace, {})
        if event.new is None:
            observed.pop(event.key, None)
            budgets.forget(event.key)
            helped = True
        else:
            selector = convert.label_selector(event.new.spec.selector)
            changed = event.key not in observed or observed[event.key] != selector
            observed[event.key] = selector
            helped = budgets.allow(event.key, event.new.allowed)
            if not changed:
                self._stir(helped=helped)
                return
        self._reselected.add(namespace)
        if not observed:
            del self._selectors[namespace]
        self._stir(helped=helped)

    def on_pod(self, event: Event[Pod]) -> None:
        """A pod came, changed or went."""
        pod = event.new or event.old
        if pod is None or pod.metadata.namespace not in self._selectors:
            return
        seen = [one for one in (event.old, event.new) if one is not None]
        owners = {self._cache.entries.owners.of(one) for one in seen}
        if len(seen) < 2 or len(owners) > 1 or _counts(seen[0]) != _counts(seen[1]):
            self._dirty |= owners

    def refresh(self) -> None:
        """Tell queueing what changed since the last time."""
        helped = False
        if self._reselected:
            entries = self._cache.entries.values()
            self._dirty |= {entry.id for entry in entries if entry.job.namespace in self._reselected}
            self._reselected.clear()
        for uid in [uid for uid in self._keyed if uid not in self._cache.entries]:
            self._cache.queues.budgets.take(self._keyed.pop(uid), {})
        for uid in self._dirty:
            entry = self._cache.entries.get(uid)
            if entry is None:
                continue
            takes = {} if self._by_slices(entry.key) else self._takes(entry.job.namespace, entry.pods.values())
            before = self._keyed.pop(uid, None)
            if before not in {None, entry.key}:  # another workload is its own now
                helped |= self._cache.queues.budgets.take(str(before), {})
            if before is not None or takes:
                helped |= self._cache.queues.budgets.take(entry.key, takes)
            if takes:
                self._keyed[uid] = entry.key
        self._dirty.clear()
        self._stir(helped=helped)

    def _by_slices(self, key: str) -> bool:
        """Whether it may lose a part of its pods, so that how many are asked for is not known before."""
        entry = self._cache.queues.entries.get(key)
        return entry is not None and entry.workload.by_slices

    def _takes(self, namespace: str, pods: Iterable[Pod]) -> Takes:
        found: Counter[str] = Counter()
        for pod in pods:
            if not _counts(pod):
                continue
            labels = pod.metadata.labels or {}
            mine = [name for name, chosen in self._selectors.get(namespace, {}).items() if selects(chosen, labels)]
            found.update(mine[:1] if len(mine) <= 1 else [TWICE])
        return found

    def _stir(self, *, helped: bool) -> None:
        if helped and self._cache.live:
            self._cache.queue_inadmissible()


def _counts(pod: Pod) -> bool:
    return bool(pod.spec.node_name) and not finished(pod) and pod.metadata.deletion_timestamp is None
