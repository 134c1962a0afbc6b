"""What each cohort has with all that is below it, uses and borrows, and where in its tree it is, as Prometheus metrics.

Cohorts without an object of their own have series as well: their queues lend each other what they have just the same.
Administrators alone make cohorts and cluster queues, so their names need no bound.
"""

from math import inf

from prometheus_client import CollectorRegistry

from queueing.queues.cohort_tree import TreeNode
from queueing.queues.queues import Queues
from queueing.status import INFINITE_SHARE, Standings
from ungater.metric_table import MetricTable, unit

_QUOTA = ("cohort", "flavor", "resource")


class CohortMetrics:
    """See the module."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def table(name: str, text: str, *names: str) -> MetricTable:
            return MetricTable(f"topogate_{name}", text, names, registry)

        self._nominal = table("cohort_nominal_quota", "The nominal quota of a cohort itself.", *_QUOTA)
        self._subtree = table(
            "cohort_subtree_quota", "What a cohort has with what is lent by all that is below it.", *_QUOTA
        )
        self._used = table("cohort_used", "What all queues below a cohort reserve.", *_QUOTA)
        self._borrowed = table("cohort_borrowed", "What of that is of its parent.", *_QUOTA)
        self._share = table(
            "cohort_weighted_share",
            "Its weighted share in thousandths, with fair sharing below a parent; +Inf: it has weight 0 and borrows.",
            "cohort",
        )
        self._use = table(
            "cohort_fair_use",
            "Its share over time in thousandths, where its parent has an admissionScope: the least is next.",
            "cohort",
        )
        self._use_of_queue = table(
            "cluster_queue_fair_use",
            "Its share over time in thousandths, where its cohort has an admissionScope: the least is next.",
            "cluster_queue",
        )
        self._cycle = table(
            "cohort_cycle", "1: it and others are each other's parents, so nothing is admitted.", "cohort"
        )
        self._places = table(
            "cohort_info", "1; the labels say where in its tree a cohort is.", "cohort", "parent_cohort", "root_cohort"
        )
        self._queues = table(
            "cluster_queue_info",
            "1; the labels say where in which tree a ClusterQueue is.",
            *("cluster_queue", "parent_cohort", "root_cohort"),
        )

    def tell_cohorts(self, queues: Queues, found: Standings) -> None:
        """Replace the gauges."""
        tree = queues.quotas.tree
        self._tell_quota(queues, found)
        shares = {name: one.share for name, one in found.cohorts.items() if one.share is not None}
        self._share.replace({(name,): inf if one == INFINITE_SHARE else one for name, one in shares.items()})
        for table, standings in ((self._use, found.cohorts), (self._use_of_queue, found.cluster)):
            table.replace({(name,): one.score for name, one in standings.items() if one.consumed is not None})
        self._cycle.replace({(name,): 1 for name, node in tree.cohorts.items() if node.cycle})
        self._places.replace({_place(node): 1 for node in tree.cohorts.values()})
        limited = (name for name, queue in queues.quotas.queues.items() if not queue.unlimited)
        self._queues.replace({_place(tree.queues[name]): 1 for name in limited})

    def _tell_quota(self, queues: Queues, found: Standings) -> None:
        nominal: dict[tuple[str, ...], float] = {}
        subtree, used, borrowed = dict(nominal), dict(nominal), dict(nominal)
        for name, standing in found.cohorts.items():
            node = queues.quotas.tree.cohorts[name]
            for key, quota in node.quota.items():
                nominal[name, *key] = unit(key[1], quota.nominal)
            for key, amount in standing.reserved.items():
                subtree[name, *key] = unit(key[1], node.subtree.get(key, 0))
                used[name, *key] = unit(key[1], amount)
                borrowed[name, *key] = unit(key[1], standing.borrowed(standing.reserved, key) or 0)
        tables = self._nominal, self._subtree, self._used, self._borrowed
        for table, rows in zip(tables, (nominal, subtree, used, borrowed), strict=True):
            table.replace(rows)

    def drop_series(self) -> None:
        """This process does not lead any more."""
        quota = self._nominal, self._subtree, self._used, self._borrowed
        for table in (*quota, self._share, self._use, self._use_of_queue, self._cycle, self._places, self._queues):
            table.replace({})


def _place(node: TreeNode) -> tuple[str, ...]:
    """Its name, its parent's and that of the root of its tree; "" of those that it has not."""
    return node.name, node.path[0].name if node.path else "", node.path[-1].name if node.path else ""
