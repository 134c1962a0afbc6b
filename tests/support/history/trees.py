"""Cohorts in a tree above the queues: administrators who move, delete and mend them while everybody else goes on.

In a third of the histories the queues are below Cohorts, and a third queue, of which nobody has jobs, lends what it
has. Cohorts come and go, have quotas, limits and weights of their own, parents that are missing, and parents that are
below them, for some seconds. LocalQueues are stopped and opened. In some of these histories borrowers take turns by
their shares (setting ``fairSharing``), and in some the classes of jobs are WorkloadPriorityClasses.

- What is admitted anew is within all limits of the tree, by naive recursion (`support.tree_oracle`): no queue takes
  what another one does not lend, nor more than it may borrow.
- At rest, whoever fits what the tree leaves its queue, by its own quota or by a loan, does not wait.
- Nobody has another one evicted for ever: it comes to rest, as each history does.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

from support.history.server import HOSTILE, NAMESPACE, Json, Key, Server, make_object
from support.tree_oracle import TreeOracle

from kube import resources

COHORTS = ("t0", "t1", "t2", "t3")
PARENTS = ("", "", *COHORTS, "missing")
QUEUES = ("cq-a", "cq-b", "cq-c")
LASTS = 90.0  # seconds in which administrators change the tree
CIRCLE = 8.0  # seconds for which cohorts are each other's parents
LAG = 300.0  # seconds for which an older tree may still be what the controller knows
KEY = ("gpu", "cpu")

Quotas = dict[tuple[str, str], tuple[int, int | None, int | None]]
Named = dict[str, tuple[Quotas, str]]


class CohortTrees:
    """See the module. Its chances are its own, so that histories without it stay what they are."""

    def __init__(self, server: Server, seed: int, note: Callable[..., None]) -> None:
        self.server = server
        self.rng = random.Random(f"tree {seed}")
        self.note = note
        self.there = self.rng.random() < 1 / 3
        self.fair = self.there and self.rng.random() < 0.4
        self._busy = self.there
        # What each version of a Cohort or ClusterQueue says: what a controller decides by is one that it has heard of.
        self.read: dict[tuple[str, str, str], tuple[Quotas, str]] = {}
        self._versions: dict[str, list[tuple[float, Named]]] = {
            kind: [(0.0, {})] for kind in ("cohorts", "clusterqueues")
        }

    # --- acting --------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """The tree is there, and is changed now and then."""
        if not self.there:
            return
        for name in COHORTS:
            if self.rng.random() < 0.7:
                self._make(name)
        spec = {"resourceGroups": [make_group(self._quota(self.rng.randint(0, 4)))], "namespaceSelector": {}}
        create = self.server.create
        create("clusterqueues", make_object(resources.CLUSTER_QUEUES, "cq-c", spec), "admin")
        for queue in QUEUES:
            self._move_queue(queue)
        if self.rng.random() < 0.5:
            for name, value in (("low", 20), ("high", 500)):
                body = {**make_object(resources.WORKLOAD_PRIORITY_CLASSES, name), "value": value}
                create("workloadpriorityclasses", body, "admin")
        for _ in range(self.rng.choice((0, 4, 12))):
            self.server.loop.call_later(self.rng.random() * LASTS, self._act)

    def rest(self) -> None:
        """Nobody changes the tree any more, and all may go on."""
        self._busy = False
        if not self.there:
            return
        oracle = next(self._oracles(lately=False))
        for cohort in list(self.server.all("cohorts")):
            if oracle.cycle(("c", cohort["metadata"]["name"])):
                self.server.change(cohort, lambda new: new["spec"].pop("parentName"), "admin")
        for local in list(self.server.all("localqueues")):
            self.server.change(local, lambda new: new["spec"].update(stopPolicy="None"), "admin")

    def _act(self) -> None:
        if self._busy:
            acts = (
                *(self._cohort,) * 3,
                self._delete,
                *(self._move_queue,) * 3,
                self._circle,
                *(self._stop_local,) * 2,
            )
            self.rng.choice(acts)()

    def _cohort(self) -> None:
        """One is made, or made otherwise."""
        name = self.rng.choice(COHORTS)
        found = self.server.get("cohorts", name)
        if found is None:
            self._make(name)
        else:
            spec = self._spec(name)
            self.server.change(found, lambda new: new.update(spec=spec), "admin")

    def _make(self, name: str) -> None:
        self.server.create("cohorts", make_object(resources.COHORTS, name, self._spec(name)), "admin")

    def _spec(self, name: str) -> Json:
        parent = self.rng.choice([one for one in PARENTS if one != name])
        spec: Json = {"parentName": parent} if parent else {}
        if self.rng.random() < 0.6:
            spec["resourceGroups"] = [
                make_group(self._quota(self.rng.randint(0, 4), limited=bool(parent), cohort=True))
            ]
        return spec | self._weight()

    def _weight(self) -> Json:
        return {"fairSharing": {"weight": self.rng.choice(("0", "500m", "1", "2"))}} if self.rng.random() < 0.5 else {}

    def _quota(self, nominal: int, *, limited: bool = False, cohort: bool = False) -> Json:
        quota = {"name": "cpu", "nominalQuota": str(nominal)}
        if limited and self.rng.random() < 0.4:
            quota["borrowingLimit"] = str(self.rng.randint(0, 4))
        if limited and self.rng.random() < 0.4:
            quota["lendingLimit"] = str(self.rng.randint(0, 6 if cohort else nominal))
        return quota

    def _move_queue(self, name: str = "") -> None:
        """A queue below another cohort, with other limits."""
        found = self.server.get("clusterqueues", name or self.rng.choice(QUEUES))
        parent, more = self.rng.choice(("", *COHORTS, "missing")), self._weight()
        assert found is not None
        nominal = int(found["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"])
        group = make_group(self._quota(nominal, limited=bool(parent)))
        reclaim, borrow = self.rng.choice(("Any", "Any", "LowerPriority")), self.rng.random() < 0.3

        def mutate(new: Json) -> None:
            spec = new["spec"]
            spec.pop("cohortName", None)
            spec.update(({"cohortName": parent} if parent else {}) | more, resourceGroups=[group])
            if "preemption" in spec:
                spec["preemption"] = {
                    "withinClusterQueue": "LowerPriority",
                    "reclaimWithinCohort": reclaim,
                    **({"borrowWithinCohort": {"policy": "LowerPriority"}} if borrow else {}),
                }

        self.server.change(found, mutate, "admin")

    def _delete(self) -> None:
        if found := list(self.server.all("cohorts")):
            self.server.delete(self.rng.choice(found), "admin")

    def _circle(self) -> None:
        """Two cohorts are each other's parents for a while."""
        found = [one["metadata"]["name"] for one in self.server.all("cohorts")]
        if len(found) < 2:
            return
        one, other = self.rng.sample(found, 2)
        for name, parent in ((one, other), (other, one)):
            self._set_parent(name, parent)
        self.server.loop.call_later(self.rng.random() * CIRCLE, self._mend, one)

    def _mend(self, name: str) -> None:
        if self._busy:
            self._set_parent(name, "")

    def _set_parent(self, name: str, parent: str) -> None:
        if (found := self.server.get("cohorts", name)) is None:
            return

        def mutate(new: Json) -> None:
            new["spec"].pop("parentName", None)
            if parent:
                new["spec"]["parentName"] = parent

        self.server.change(found, mutate, "admin")

    def _stop_local(self) -> None:
        namespace, name = self.rng.choice((NAMESPACE, NAMESPACE, HOSTILE)), self.rng.choice(("a", "b"))
        policy = self.rng.choice(("None", "Hold", "HoldAndDrain"))
        if (found := self.server.get("localqueues", name, namespace)) is not None:
            self.server.change(found, lambda new: new["spec"].update(stopPolicy=policy), "admin")

    # --- judging -------------------------------------------------------------------------------------------------

    def saw(self, key: Key) -> None:
        """One object was changed."""
        if key[0] in self._versions:
            if (one := self.server.objects.get(key)) is not None:
                self.read[key[0], key[2], one["metadata"]["resourceVersion"]] = _read(one)
            named = {one["metadata"]["name"]: _read(one) for one in self.server.all(key[0])}
            self._versions[key[0]].append((self.server.loop.now, named))

    def allows(self, queue: str, more: int, used: Counter[str]) -> bool:
        """Whether a queue could be given so much, beside what is ``used``, by a tree that there was of late."""
        return any(_left(oracle, queue, used) >= more for oracle in self._oracles(lately=True))

    def surely_left(self, queue: str, used: Counter[str]) -> int:
        """What the tree leaves a queue now."""
        return _left(next(self._oracles(lately=False)), queue, used)

    def _oracles(self, *, lately: bool) -> Iterator[TreeOracle]:
        """The tree as it is, or as it was of late: the two kinds are watched one by one, so any of one with any."""
        since = self.server.loop.now - LAG
        kept = {}
        for kind, found in self._versions.items():
            early = [named for at, named in found if at < since][-1:]
            kept[kind] = [*early, *(named for at, named in found if at >= since)] if lately else [found[-1][1]]
        for cohorts, queues in product(reversed(kept["cohorts"]), reversed(kept["clusterqueues"])):
            oracle = TreeOracle()
            oracle.cohorts, oracle.queues = cohorts, queues
            yield oracle


def _left(oracle: TreeOracle, queue: str, used: Counter[str]) -> int:
    if queue not in oracle.queues or _is_in_circle(oracle, queue):
        return 0
    oracle.held = {name: (name, {KEY: cpu}, False) for name, cpu in used.items()}
    left: int = oracle.left(("q", queue), KEY)
    return left


def _is_in_circle(oracle: TreeOracle, queue: str) -> bool:
    """Whether a cohort above a queue is among those that are each other's parents."""
    at, seen = oracle.declared(("q", queue)), set[str]()
    while at and at not in seen:
        seen.add(at)
        at = oracle.declared(("c", at))
    return bool(at)


def _read(one: Json) -> tuple[Quotas, str]:
    """Quotas, and the parent."""
    spec: dict[str, Any] = one.get("spec") or {}
    quotas = {}
    for group in spec.get("resourceGroups") or ():
        for flavor in group["flavors"]:
            for quota in flavor["resources"]:
                limits = [quota.get(name) for name in ("borrowingLimit", "lendingLimit")]
                read = [None if limit is None else int(limit) for limit in limits]
                quotas[flavor["name"], quota["name"]] = int(quota["nominalQuota"]), read[0], read[1]
    return quotas, spec.get("parentName") or spec.get("cohortName") or ""


def make_group(quota: Json) -> Json:
    """The resource group of a queue or cohort with this one quota."""
    return {"coveredResources": ["cpu"], "flavors": [{"name": "gpu", "resources": [quota]}]}
