"""What a cycle decides below Cohorts, judged in that moment by the objects that the controller has heard of.

What was stored of late says little where a tree changes every few seconds. So this goes by the versions of Cohorts and
ClusterQueues that came over the wire, and sums up quotas by naive recursion (`support.tree_oracle`). Who holds what is
the controller's own account, which others judge.

- A workload that is let in, grows, or has others evicted ends within all limits: its queue and each cohort above it use
  no more than they have and may borrow, and nobody lends more than it may.
- A workload of another queue is a victim only while its queue, and each cohort above it that is not above the
  preemptor, uses more than is its own; in some order of the victims. A successor counts as if it were admitted.
- A victim of another queue is in the same tree.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from support.history.trees import KEY, CohortTrees
from support.tree_oracle import TreeOracle

from engine.cluster.state import ClusterState
from engine.reservation_key import HolderKey, whole_of
from queueing.cycle import cycle, elastic
from queueing.cycle.nominate import Fits, Outcome, Preempts
from queueing.queues.entry import Entry
from queueing.queues.queues import Queues
from ungater import kinds
from ungater.controller import Controller

Node = tuple[str, str]
MILLI = 1000  # the controller counts in thousandths of a cpu


@contextmanager
def judged_decisions(trees: CohortTrees, say: Callable[[str], None], heard: Callable[[], Controller]) -> Iterator[None]:
    """Each decision of a cycle is judged as it is made; ``heard``: the controller that makes it."""
    if not trees.there:
        yield
        return
    decide, judge = cycle.nominate, TreeDecisions(trees, say, heard)

    def nominate(state: ClusterState, queues: Queues, entry: Entry) -> Outcome:
        outcome = decide(state, queues, entry)
        if isinstance(outcome, Fits):
            judge.see_admission(queues, entry, outcome)
        elif isinstance(outcome, Preempts):
            judge.see_plan(queues, entry, outcome)
        return outcome

    def seen(grow: Callable[..., Any]) -> Callable[..., Any]:
        def growing(state: ClusterState, queues: Queues, key: str) -> Any:
            left = judge.left_to(queues, queues.entries[key].queue)
            before = judge.used_by(queues, key)
            found = grow(state, queues, key)
            judge.see_growth(key, judge.used_by(queues, key) - before, left)
            return found

        return growing

    with (
        patch.object(cycle, "nominate", nominate),
        patch.object(elastic, "grow", seen(elastic.grow)),
        patch.object(elastic, "grow_partly", seen(elastic.grow_partly)),
    ):
        yield


class TreeDecisions:
    """See the module."""

    def __init__(self, trees: CohortTrees, say: Callable[[str], None], heard: Callable[[], Controller]) -> None:
        self.trees = trees
        self.say = say
        self.heard = heard
        self.counts: Counter[str] = Counter()

    def see_admission(self, queues: Queues, entry: Entry, made: Fits) -> None:
        """Somebody is let in."""
        asked, left = _cpu(made.option.amounts), self.left_to(queues, entry.queue)
        if asked > left:
            self.say(f"{entry.workload.key} takes {asked} cpu of {entry.queue}, which the tree leaves {left}")

    def see_growth(self, key: str, more: float, left: float) -> None:
        """One that runs was given so much more."""
        if more > max(0, left):
            self.say(f"{key} grows by {more} cpu, and the tree leaves its queue {left}")

    def see_plan(self, queues: Queues, entry: Entry, made: Preempts) -> None:
        """Somebody is to have others evicted."""
        oracle, key = self._oracle(queues), entry.workload.key
        # A plan counts on what leaves already, and nothing is taken back from whoever will be within its own by that.
        oracle.held = {one: held for one, held in oracle.held.items() if not held[2]}
        victims = [one for one in made.plan.victims if not one.is_pod and whole_of(one.key) in oracle.held]
        others = [whole_of(one.key) for one in victims if oracle.held[whole_of(one.key)][0] != entry.queue]
        for other in others:
            its = oracle.held[other][0]
            if oracle.root(("q", its)) != oracle.root(("q", entry.queue)):
                self.say(f"{key} preempts {other} of {its}, in another tree")
        now = dict(oracle.held)
        # A successor is charged only what those that leave do not hold, and a plan is made as if they were gone.
        for one in queues.successors.values():
            if one.holder in now:
                oracle.held[one.holder] = one.entry.queue, {KEY: _cpu(one.option.amounts)}, False
        # Of one that loses some slices alone, the account says only what all of it takes.
        if not any(one.domains for one in victims) and not _can_be_taken(oracle, entry.queue, others, victims):
            held = {str(one): oracle.held[one] for one in others}
            self.say(f"{key} of {entry.queue} preempts {held}, of which not all is borrowed: {_told(oracle)}")
        oracle.held = now
        for victim in victims:
            oracle.held.pop(whole_of(victim.key), None)
        asked, left = _cpu(made.option.amounts), oracle.left(("q", entry.queue), KEY)
        if asked > left:
            told = f"the tree leaves it {left} then: {_told(oracle)}"
            self.say(f"{key} preempts for {asked} cpu of {entry.queue}, and {told}")

    def left_to(self, queues: Queues, queue: str) -> float:
        """What the tree leaves a queue now."""
        return _left(self._oracle(queues), queue)

    @staticmethod
    def used_by(queues: Queues, key: str) -> float:
        """What one holds."""
        found = queues.quotas.held.get(queues.entries[key].workload.key)
        return _cpu(found.amounts) if found is not None else 0.0

    def _oracle(self, queues: Queues) -> TreeOracle:
        """The tree as the controller has heard of it, with what is held."""
        informers, oracle = self.heard().parts.informers, TreeOracle()
        for name, kind in (("cohorts", kinds.COHORTS), ("clusterqueues", kinds.CLUSTER_QUEUES)):
            stored = informers.of(kind).store
            read = {key: self.trees.read[name, key, wire.metadata.resource_version] for key, wire in stored.items()}
            setattr(oracle, "cohorts" if name == "cohorts" else "queues", read)
        oracle.held = {
            key: (one.queue, {KEY: _cpu(one.amounts)}, one.leaving) for key, one in queues.quotas.held.items()
        }
        return oracle


def _can_be_taken(oracle: TreeOracle, queue: str, others: Collection[HolderKey], victims: Collection[Any]) -> bool:
    """Whether there is an order in which each of these is in a queue, and below cohorts, that borrow still."""
    held = dict(oracle.held)
    try:
        for one in victims:  # whoever goes of its own queue takes from nobody else
            if whole_of(one.key) not in others:
                oracle.held.pop(whole_of(one.key), None)
        left = sorted(others, key=lambda one: oracle.held[one][1][KEY])
        while left:
            # With less of it gone more is borrowed, so the smallest that may go is the best one to go first.
            found = next((one for one in left if _is_borrowed(oracle, queue, oracle.held[one][0])), None)
            if found is None:
                return False
            left.remove(found)
            del oracle.held[found]
        return True
    finally:
        oracle.held = held


def _is_borrowed(oracle: TreeOracle, queue: str, other: str) -> bool:
    """Whether another queue, and the cohorts above it alone, use more than is their own."""
    mine = set(_path(oracle, ("q", queue)))
    between = [node for node in _path(oracle, ("q", other)) if node not in mine]
    return all(oracle.usage(node, KEY) > oracle.subtree(node, KEY) for node in between)


def _path(oracle: TreeOracle, node: Node) -> Iterator[Node]:
    at: Node | None = node
    while at is not None:
        yield at
        at = oracle.parent(at)


def _left(oracle: TreeOracle, queue: str) -> float:
    left: float = oracle.left(("q", queue), KEY) if queue in oracle.queues else 0.0
    return left


def _cpu(amounts: Mapping[tuple[str, str], int]) -> float:
    return amounts.get(KEY, 0) / MILLI


def _told(oracle: TreeOracle) -> str:
    used: Counter[str] = Counter()
    for queue, amounts, _ in oracle.held.values():
        used[queue] += amounts[KEY]
    return f"queues {oracle.queues}, cohorts {oracle.cohorts}, used {dict(used)}"
