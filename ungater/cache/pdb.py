"""PodDisruptionBudgets, told to queueing: who could not be evicted anyway is not chosen as a victim.

Rules
- A budget counts those pods of a workload that it selects, that are bound and have not ended; a pod that is on its way
  out is not asked for again, so it counts no more.
- A pod that two budgets select can be evicted by nobody: its workload has to wait for an administrator.
- Nothing is looked at where a namespace has no budget. Else a pod is compared with all budgets of its namespace when it
  or its labels are new, and with one when that budget's selector changed.
- Of a namespace `MOST_BUDGETS` budgets are compared, with `MOST_TERMS` keys and values together. Where there are more,
  or one is kept in part (`kube.kept`), all its pods are taken for such as nobody can evict: the Eviction API, which
  reads budgets of any length, may refuse each of them.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Self

import msgspec

from kube.budgets import PodDisruptionBudget
from kube.informer import Event
from kube.objects import LabelSelector, Pod
from kube.pods import convert
from queueing.queues.pdb import Takes
from ungater.cache.cache import Cache
from ungater.model.pod_slots import finished
from ungater.model.workload_entry import WorkloadEntry

TWICE = "(two budgets of one pod)"  # no legal name; nothing is ever allowed of it
# A thousand budgets of one tenant, compared with all its pods, would take seconds before each cycle.
MOST_BUDGETS = 128
MOST_TERMS = 1024

Selector = LabelSelector | None
_ALL = LabelSelector()
Counted = tuple[Mapping[str, str], set[str]]  # the labels of a pod, and the budgets that select it


class _Matcher(msgspec.Struct, frozen=True):
    """A label selector, made ready to be compared with many pods: the cost is that of the keys both have."""

    needs: frozenset[str]  # keys that have to be there
    allowed: Mapping[str, frozenset[str]]
    forbidden: Mapping[str, frozenset[str] | None]  # values of a key; None: it must not be there
    keys: frozenset[str]
    terms: int

    @classmethod
    def from_selector(cls, selector: LabelSelector) -> Self:
        needs: set[str] = set()
        allowed: dict[str, frozenset[str]] = {}
        forbidden: dict[str, frozenset[str] | None] = {}
        for one in convert.label_selector(selector) or ():
            values = frozenset(one.values)
            match one.operator:
                case "NotIn":
                    before = forbidden.get(one.key, frozenset())
                    # Several requirements on one key have to hold all; "must not be there" is stricter than any value.
                    forbidden[one.key] = before | values if before is not None else None
                case "DoesNotExist":
                    forbidden[one.key] = None
                case "Exists":
                    needs.add(one.key)
                case _:
                    needs.add(one.key)
                    allowed[one.key] = allowed[one.key] & values if one.key in allowed else values
        keys = frozenset((*allowed, *forbidden))
        return cls(frozenset(needs), allowed, forbidden, keys, _terms(selector))

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether a pod with these labels is selected."""
        if len(self.needs) > len(labels) or not all(key in labels for key in self.needs):
            return False
        # The shorter side is walked: a tenant may write 1,000 keys into a selector, or as many labels on a pod.
        keys = (self.keys, labels) if len(self.keys) < len(labels) else (labels, self.keys)
        return all(self._passes(key, labels[key]) for key in keys[0] if key in keys[1])

    def _passes(self, key: str, value: str) -> bool:
        barred = self.forbidden.get(key, frozenset())
        return barred is not None and value not in barred and value in self.allowed.get(key, (value,))


class _Namespace(msgspec.Struct):
    """The budgets of a namespace. ``changed``: whose selector is to be compared with its pods anew."""

    selectors: dict[str, Selector] = msgspec.field(default_factory=dict)
    matchers: dict[str, _Matcher] = msgspec.field(default_factory=dict)  # of those that are compared
    waiting: dict[str, LabelSelector | None] = msgspec.field(default_factory=dict)  # too many, or (None) kept in part
    changed: dict[str, None] = msgspec.field(default_factory=dict)
    terms: int = 0  # of those that are compared

    def set(self, budget: str, selector: Selector, *, cut: bool) -> None:
        """A budget came, or selects others now; ``cut``: nobody knows whom."""
        self._drop(budget)
        self.selectors[budget] = selector
        if cut or selector is not None:
            self.waiting[budget] = None if cut else selector
        self._fill()

    def is_cut(self, budget: str) -> bool:
        """Whether nobody knows whom a budget selects."""
        return self.waiting.get(budget, _ALL) is None

    def remove_budget(self, budget: str) -> None:
        """A budget is gone."""
        self._drop(budget)
        self.selectors.pop(budget, None)
        self._fill()

    def _drop(self, budget: str) -> None:
        self.waiting.pop(budget, None)
        if (before := self.matchers.pop(budget, None)) is not None:
            self.terms -= before.terms
            self.changed[budget] = None

    def _fill(self) -> None:
        while self.waiting and len(self.matchers) < MOST_BUDGETS:
            budget, selector = next(iter(self.waiting.items()))
            # The first that does not fit stops all behind it: any budget
            # that waits makes the namespace's pods protected anyway.
            if selector is None or self.terms + (terms := _terms(selector)) > MOST_TERMS:
                return
            del self.waiting[budget]
            self.terms += terms
            self.matchers[budget] = _Matcher.from_selector(selector)
            self.changed[budget] = None


class BudgetWatch:
    """See the module's rules. `report_changes` brings queueing up to date, before it decides."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._namespaces: dict[str, _Namespace] = {}
        self._counted: dict[str, dict[str, Counted]] = {}  # by uids of job and pod
        self._keyed: dict[str, str] = {}  # uid of a job -> key of its workload
        self._dirty: set[str] = set()  # uids of jobs
        self._turned: set[str] = set()  # namespaces all of whose workloads are to be looked at

    def on_budget(self, event: Event[PodDisruptionBudget]) -> None:
        """A budget came, changed or went."""
        name, _, _ = event.key.partition("/")
        budgets, namespace = self._cache.queues.budgets, self._namespaces.setdefault(name, _Namespace())
        new, unclear = not namespace.selectors, bool(namespace.waiting)
        if event.new is None:
            namespace.remove_budget(event.key)
            budgets.remove_budget(event.key)
            helped = True
        else:
            selector, cut = event.new.spec.selector, event.new.metadata.cut
            # The disruption controller writes a budget's status with
            # every pod; only another selector costs a comparison.
            known = event.key in namespace.selectors and namespace.selectors[event.key] == selector
            if not known or cut != namespace.is_cut(event.key):
                namespace.set(event.key, selector, cut=cut)
            helped = budgets.allow(event.key, event.new.allowed)
        # The first, the last, or the one that makes the namespace
        # unclear: all of its workloads are counted in another way.
        if new or not namespace.selectors or bool(namespace.waiting) != unclear:
            self._turned.add(name)
        if not namespace.selectors:
            del self._namespaces[name]
        self._move_inadmissible(helped=helped)

    def follow_pod(self, event: Event[Pod]) -> None:
        """A pod came, changed or went."""
        pod = event.new or event.old
        # Most namespaces have no budget, and pods have events all the time.
        if pod is None or pod.metadata.namespace not in self._namespaces:
            return
        seen = [one for one in (event.old, event.new) if one is not None]
        # Of both versions: a pod that changed its owner has to leave the count of the one that it had.
        owners = {self._cache.entries.owners.owner_of_pod(one) for one in seen}
        if len(seen) < 2 or len(owners) > 1 or _budgeted(seen[0]) != _budgeted(seen[1]):
            self._dirty |= owners

    def report_changes(self) -> None:
        """Tell queueing what changed since the last time."""
        entries = self._cache.entries
        if self._turned:
            self._dirty |= {entry.id for entry in entries.values() if entry.job.namespace in self._turned}
            self._turned.clear()
        # Before workloads are counted: it says which of them are to be.
        self._compare()
        for uid in [uid for uid in self._keyed if uid not in entries]:
            self._cache.queues.budgets.set_selected(self._keyed.pop(uid), {})
        for uid in [uid for uid in self._counted if uid not in entries]:
            del self._counted[uid]
        helped = False
        # Popped one by one, each under a guard of its own: an error of one workload leaves the others for this call.
        while self._dirty:
            if (entry := entries.get(self._dirty.pop())) is not None:
                with self._cache.guard("workload", entry.key):
                    helped |= self._look_at(entry)
        self._move_inadmissible(helped=helped)

    def _compare(self) -> None:
        """Compare budgets whose selectors changed with the pods of their namespaces that were compared before."""
        changed = {name: one for name, one in self._namespaces.items() if one.changed}
        for entry in self._cache.entries.values() if changed else ():
            if (namespace := changed.get(entry.job.namespace)) is None:
                continue
            for labels, names in self._counted.get(entry.id, {}).values():
                for budget in namespace.changed:
                    matcher = namespace.matchers.get(budget)
                    if (matcher is not None and matcher.selects(labels)) != (budget in names):
                        names.symmetric_difference_update((budget,))
                        self._dirty.add(entry.id)
        for namespace in changed.values():
            namespace.changed.clear()

    def _look_at(self, entry: WorkloadEntry) -> bool:
        """Count the pods of a workload; True where it became somebody's victim again."""
        budgets, helped = self._cache.queues.budgets, False
        takes = self._takes(entry)
        before = self._keyed.pop(entry.id, None)
        if before not in {None, entry.key}:  # another workload is its own now
            helped |= budgets.set_selected(str(before), {})
        if before is not None or takes:
            helped |= budgets.set_selected(entry.key, takes)
        if takes:
            self._keyed[entry.id] = entry.key
        return helped

    def _by_slices(self, key: str) -> bool:
        """Whether it may lose a part of its pods, so that how many are asked for is not known before."""
        entry = self._cache.queues.entries.get(key)
        return entry is not None and entry.workload.by_slices

    def _takes(self, entry: WorkloadEntry) -> Takes:
        namespace, before = self._namespaces.get(entry.job.namespace), self._counted.pop(entry.id, {})
        if namespace is None or self._by_slices(entry.key):
            return {}
        pods = [pod for pod in entry.pods.values() if _counts(pod)]
        if not pods:
            return {}
        if namespace.waiting:
            self._counted[entry.id] = {uid: one for uid, one in before.items() if uid in entry.pods}
            return {TWICE: len(pods)}
        counted: dict[str, Counted] = {}
        for pod in pods:
            labels, known = pod.metadata.labels or {}, before.get(pod.metadata.uid)
            if known is None or known[0] != labels:
                known = labels, {name for name, one in namespace.matchers.items() if one.selects(labels)}
            counted[pod.metadata.uid] = known
        self._counted[entry.id] = counted
        # The Eviction API answers 500 for a pod that more than one budget selects, whatever these allow.
        return Counter(TWICE if len(names) > 1 else min(names) for _, names in counted.values() if names)

    def _move_inadmissible(self, *, helped: bool) -> None:
        if helped and self._cache.live:
            self._cache.queue_inadmissible()


def _terms(selector: LabelSelector) -> int:
    needs = selector.match_expressions or ()
    return 2 * len(selector.match_labels or ()) + sum(1 + len(one.values or ()) for one in needs)


def _counts(pod: Pod) -> bool:
    return bool(pod.spec.node_name) and not finished(pod) and pod.metadata.deletion_timestamp is None


def _budgeted(pod: Pod) -> tuple[bool, Mapping[str, str] | None]:
    """What budgets look at."""
    return _counts(pod), pod.metadata.labels
