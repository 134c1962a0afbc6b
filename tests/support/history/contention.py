"""Trees of cohorts with little for many: limits that bind several levels up, and loans that are taken back.

In two of three histories with Cohorts these are in one tree, three or four high, and each queue has a quota of 0 to 2.
All queues have jobs, borrow, and take back what is their own. Limits and quotas change in place while jobs come in
crowds, and now and then the controller dies between two of them.

What is decided is judged by `support.history.tree_decisions`.
"""

import random
from collections.abc import Callable

from support.history.server import HOSTILE, NAMESPACE, Json, make_object
from support.history.trees import COHORTS, QUEUES, CohortTrees, make_group
from support.history.users import Users

from kube import resources

SHAPES = (  # the parents of t0 to t3, and of the queues
    ("", "t0", "t1", "t2", "t3", "t2", "t1"),
    ("", "t0", "t1", "t2", "t3", "t3", "t0"),
    ("", "t0", "t0", "t2", "t1", "t3", "t2"),
    ("", "t0", "t1", "t1", "t2", "t3", "t1"),
)
LASTS = 70.0  # seconds in which all this happens
CROWD = 3  # jobs at most that come at once
OWN = (0, 1, 1, 2)  # cpu of a queue or cohort
PART = 2 / 3  # of all trees


class TreeContention:
    """See the module. Its chances are its own, so that other histories stay what they are."""

    def __init__(self, trees: CohortTrees, users: Users, seed: int, restart: Callable[[], None]) -> None:
        self.trees = trees
        self.users = users
        self.rng = random.Random(f"contention {seed}")
        self.there = trees.there and self.rng.random() < PART
        self._restart = restart
        self._busy = self.there

    def begin(self) -> None:
        """The tree is there, and is changed now and then."""
        if not self.there:
            return
        server, rng = self.trees.server, self.rng
        self.users.queues, self.users.most_quota = ("a", "b", "c", "a", "b", "c", ""), 2
        self.users.counts = (1, 1, 1, 2, 2, 3)  # what no limit ever allows contends with nobody
        for namespace in (NAMESPACE, HOSTILE):
            local = make_object(resources.LOCAL_QUEUES, "c", {"clusterQueue": "cq-c"})
            local["metadata"]["namespace"] = namespace
            server.create("localqueues", local, "admin")
        parents = rng.choice(SHAPES)
        for name, parent in zip(COHORTS, parents, strict=False):
            if (found := server.get("cohorts", name)) is not None:
                server.delete(found, "admin")
            spec: Json = {"parentName": parent} if parent else {}
            spec["resourceGroups"] = [make_group(self._quota(rng.choice(OWN), limited=bool(parent), most=0.6))]
            server.create("cohorts", make_object(resources.COHORTS, name, spec), "admin")
        for name, parent in zip(QUEUES, parents[len(COHORTS) :], strict=True):
            self._place_queue(name, parent)
        for _ in range(rng.randint(10, 24)):
            server.loop.call_later(rng.random() * LASTS, self._act)

    def rest(self) -> None:
        """Nothing of it happens any more."""
        self._busy = False

    def _act(self) -> None:
        if self._busy:
            self.rng.choice((*(self._crowd,) * 4, *(self._limit,) * 4, self._restart))()

    def _crowd(self) -> None:
        for _ in range(self.rng.randint(1, CROWD)):
            self.users.submit(NAMESPACE)

    def _limit(self) -> None:
        """A cohort or queue has other quota and limits, and stays where it is."""
        kind, names = self.rng.choice((("cohorts", COHORTS), ("clusterqueues", QUEUES)))
        found = self.trees.server.get(kind, self.rng.choice(names))
        if found is None:
            return
        limited = bool(found["spec"].get("parentName") or found["spec"].get("cohortName"))
        group = make_group(self._quota(self.rng.choice(OWN), limited=limited, most=0.6 if kind == "cohorts" else 0.2))
        self.trees.server.change(found, lambda new: new["spec"].update(resourceGroups=[group]), "admin")

    def _place_queue(self, name: str, parent: str) -> None:
        rng = self.rng
        group = make_group(self._quota(rng.choice(OWN), limited=True, most=0.2))
        preemption = {
            "withinClusterQueue": "LowerPriority",
            "reclaimWithinCohort": rng.choice(("Any", "LowerPriority")),
        }
        if rng.random() < 0.4:
            preemption |= {"borrowWithinCohort": {"policy": "LowerPriority"}}
        found = self.trees.server.get("clusterqueues", name)
        more = {"cohortName": parent, "resourceGroups": [group], "preemption": preemption}
        self.trees.server.change(found, lambda new: new["spec"].update(more), "admin")

    def _quota(self, nominal: int, *, limited: bool, most: float) -> Json:
        """A quota, with limits in up to so many of all cases: mostly those of cohorts are to refuse."""
        quota = {"name": "cpu", "nominalQuota": str(nominal)}
        for name, part, highest in (("borrowingLimit", 1.0, 2), ("lendingLimit", 0.6, 1)):
            if limited and self.rng.random() < most * part:
                quota[name] = str(self.rng.randint(0, highest))
        return quota
