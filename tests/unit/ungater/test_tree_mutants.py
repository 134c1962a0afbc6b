"""Simulated histories find a controller that reads a tree of cohorts wrongly.

Each mutant breaks one rule of the product, and some history of a few dozen has to break on it in the way that is meant.
The first of those that do are tried first, as a history takes seconds.
"""

import re
from contextlib import AbstractContextManager, contextmanager
from unittest.mock import patch

import pytest
from msgspec.structs import replace
from support.history import history

from kube import queues
from queueing.model import Cohort
from queueing.preemption import cohort_reach, simulate
from queueing.queues.cohort_tree import CohortTree, TreeNode
from ungater.cache import config

SEEDS = range(60)
BORROWED = "of which not all is borrowed"
LIMITS = r"which the tree leaves|the tree leaves it|the tree leaves its queue"


def without(limit: str) -> AbstractContextManager[object]:
    """Cohorts have no limits of one kind."""
    set_limits = TreeNode.set_limits

    def forgets(self, quota):
        if not self.is_queue:
            quota = {key: replace(one, **{limit: None}) for key, one in quota.items()}
        set_limits(self, quota)

    return patch.object(TreeNode, "set_limits", forgets)


def after_a_start() -> AbstractContextManager[object]:
    """A Cohort that was there before the controller started has no limits."""
    read_cohort = config.ConfigEvents.read_cohort

    def forgets(self, wire):
        with patch.object(config, "cohort", queues.cohort if self._core.live else unlimited):
            read_cohort(self, wire)

    return patch.object(config.ConfigEvents, "read_cohort", forgets)


def unlimited(wire) -> Cohort:
    """The Cohort with its quotas alone."""
    found = queues.cohort(wire)
    return replace(
        found,
        groups=tuple(
            replace(
                group,
                flavors=tuple(
                    replace(
                        flavor,
                        resources={
                            name: replace(one, borrowing=None, lending=None) for name, one in flavor.resources.items()
                        },
                    )
                    for flavor in group.flavors
                ),
            )
            for group in found.groups
        ),
    )


def without_loans() -> AbstractContextManager[object]:
    """A queue of a tree takes what is its own, and no more."""
    available_to = CohortTree.available_to

    def keeps_own(self, node, key):
        own = max(0, node.subtree.get(key, 0) - node.usage.get(key, 0))
        return min(available_to(self, node, key), own) if node.path else available_to(self, node, key)

    return patch.object(CohortTree, "available_to", keeps_own)


def from_anybody() -> AbstractContextManager[object]:
    """Whoever is within its own quota is no less a victim for that."""
    return overusing(lambda *_: True)


def from_any_cohort() -> AbstractContextManager[object]:
    """Whoever borrows in a cohort that is within its own quota is no less a victim for that."""
    overuses = cohort_reach.overuses
    return overusing(lambda leaving, node, keys: not node.is_queue or overuses(leaving, node, keys))


@contextmanager
def overusing(overuses):
    """When victims are looked for, and when they are taken, this says who uses more than is its own."""
    with patch.object(cohort_reach, "overuses", overuses), patch.object(simulate, "overuses", overuses):
        yield


MUTANTS = {
    "nobody borrows": (without_loans, "waits and would fit", (53, 65, 74)),
    "a cohort borrows without its limit": (lambda: without("borrowing"), LIMITS, (1,)),
    "a cohort lends without its limit": (lambda: without("lending"), LIMITS, (20,)),
    "a restart forgets the limits of cohorts": (after_a_start, LIMITS, (16,)),
    "queues within their own quota are reclaimed from": (from_anybody, BORROWED, (16,)),
    "cohorts within their own quota are reclaimed from": (from_any_cohort, BORROWED, (16,)),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_some_history_finds_a_tree_read_wrongly(name):
    mutant, said, first = MUTANTS[name]
    for seed in dict.fromkeys([*first, *SEEDS]):
        try:
            with mutant():
                history.run(seed)
        except history.Broken as broken:
            if re.search(said, str(broken).partition("the end of its history")[0]):
                return
    pytest.fail(f"no history of {len(SEEDS)} found that {name}")
