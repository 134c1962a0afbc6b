"""How every queue stands: who waits, who holds what, and whether anything can be admitted. Pure; one pass over all.

Rules
- *pending* is who has no admission, those whose victims are still on their way out included; *reserving* is who holds
  quota, these included; *admitted* is who holds quota and waits for no admission check.
- Pods that run though no workload answers for them (`Queues.charge_pod`) are used like what is admitted, and are no
  workload.
- Every flavor and resource of the queue's quota is named, also where nothing is used, and whatever is still held of one
  that is no longer in its quota.
- A queue is active if something can be admitted there: it is not stopped, and each of its resource groups has a flavor
  that exists. Below cohorts that are each other's parents nothing is active.
- A cohort adds up what is below it: how many wait and hold, and what they hold. It borrows what its whole subtree uses
  beyond the quota of that.
"""

from collections.abc import Collection, Mapping
from math import ceil, inf
from typing import Any, Final

import msgspec

from engine.quantity import format_quantity
from engine.reasons import Reason
from engine.reservation_key import Role, role_of
from queueing.messages import in_circle, missing_parent
from queueing.model import ClusterQueue, FlavorResource, LocalQueue, Quantities, Stop, quotas_of, serves
from queueing.queues.cohort_tree import TreeNode
from queueing.queues.entry import HOLDING, Phase
from queueing.queues.over_time.fair_use import FairUse
from queueing.queues.queues import Queues
from queueing.queues.quota import Quotas

INFINITE_SHARE: Final = 2**63 - 1  # of a queue of weight 0 that borrows; Kueue writes the same
MOST_FLAVORS: Final = 256  # in one status, as the kinds have it: the queues of a large tree may have more
MOST_RESOURCES: Final = 64
LENDS: Final = "what is below it can lend and borrow"  # of a cohort of which there is nothing more to tell
NO_EFFECT: Final = "the admissionScope of the ClusterQueue has no effect: the setting fairUseHalfLifeSeconds is not set"
COHORT_NO_EFFECT: Final = NO_EFFECT.replace("ClusterQueue", "Cohort")
LocalName = tuple[str, str]  # (namespace, name)
_NOBODY: Final[Collection[str]] = frozenset()


class Standing(msgspec.Struct):
    """One queue or cohort. ``reserved`` and ``used``: by (flavor, resource), of who is reserving and who is admitted.

    ``nominal``: what the cluster queue owns, or the subtree of a cohort; None for a local queue, which owns and borrows
    nothing. ``counted``: of a cohort, what its subtree uses of that. ``share``: the weighted share in thousandths,
    where fair sharing is on and there is a parent. ``consumed``: what it used over time, by resource as of
    ``consumed_at``, where the cluster queue of a local queue, or else its parent, goes by that (of the others what is
    beyond their own). ``score``: what that and its weight come to; of cluster queues and cohorts in thousandths of what
    the parent may use.
    """

    active: bool = True
    reason: Reason = Reason.READY
    message: str = ""
    pending: int = 0
    reserving: int = 0
    admitted: int = 0
    reserved: Quantities = msgspec.field(default_factory=dict)
    used: Quantities = msgspec.field(default_factory=dict)
    nominal: Quantities | None = None
    counted: Mapping[FlavorResource, int] | None = None
    share: int | None = None
    consumed: dict[str, float] | None = None
    consumed_at: float = 0.0
    score: float = 0.0

    def tell_use(self, use: FairUse, part: str) -> None:
        """It is a local queue, and this is what it used over time."""
        self.consumed, self.score = use.consumed_by(part), use.score_of(part)
        self.consumed_at = use.updated_at(part)

    def tell_cohort_use(self, quotas: Quotas, node: TreeNode) -> None:
        """It is a cluster queue or a cohort, and this is what it used over time beyond its own."""
        over_time = quotas.over_time
        if node.parent is not None and node.parent.by_use:
            infinite, share = over_time.score_of(node)
            self.consumed, self.score = over_time.consumed_by(node), inf if infinite else share
            self.consumed_at = over_time.now

    def count_pending(self) -> None:
        """One more waits."""
        self.pending += 1

    def count_reserving(self, amounts: Mapping[FlavorResource, int], *, settled: bool) -> None:
        """One more holds quota; ``settled``: it is admitted."""
        self.reserving += 1
        self.admitted += settled
        self.add_reserved(amounts, settled=settled)

    def add_reserved(self, amounts: Mapping[FlavorResource, int], *, settled: bool) -> None:
        """So much quota is held."""
        for key, amount in amounts.items():
            self.reserved[key] = self.reserved.get(key, 0) + amount
            if settled:
                self.used[key] = self.used.get(key, 0) + amount

    def borrowed(self, amounts: Mapping[FlavorResource, int], key: FlavorResource) -> int | None:
        """How much of these amounts is beyond what the queue owns; None for a local queue."""
        if self.nominal is None:
            return None
        # What the queues below a cohort hold of their own and lend to nobody is no use of the cohort's quota.
        held = amounts if self.counted is None else self.counted
        return max(0, held.get(key, 0) - self.nominal.get(key, 0))

    def add_below(self, queue: "Standing") -> None:
        """A cluster queue somewhere below this cohort stands like that."""
        self.pending += queue.pending
        self.reserving += queue.reserving
        self.admitted += queue.admitted
        self.add_reserved(queue.reserved, settled=False)


class Standings(msgspec.Struct, frozen=True):
    """All cluster queues and all cohorts by name, all local queues by (namespace, name).

    Among the cohorts are those without an object, which queues or cohorts only name.
    """

    cluster: dict[str, Standing]
    cohorts: dict[str, Standing]
    local: dict[LocalName, Standing]


def standings(queues: Queues, flavors: Collection[str], *, unchecked: Collection[str] = _NOBODY) -> Standings:
    """How all queues stand now.

    ``flavors``: those that have a topology, which the engine knows (`queues` knows the others). ``unchecked``: keys of
    workloads that hold quota and still wait for an admission check.
    """
    known = {*flavors, *queues.config.plain}
    cluster = {name: _cluster(queues, queue, known) for name, queue in queues.quotas.queues.items()}
    local = {key: _local(queues, queue, cluster) for key, queue in queues.config.local.items()}
    for key, entry in queues.entries.items():
        behind = local.get((entry.workload.namespace, entry.workload.queue))
        ahead = cluster.get(entry.queue)
        if entry.grant is None and ahead is None:  # it was never led to a queue that exists
            route = queues.config.local.get((entry.workload.namespace, entry.workload.queue))
            ahead = cluster.get(route.cluster_queue) if route is not None else None
        for standing in (behind, ahead):
            if standing is None:
                continue
            if role_of(key) is Role.GROWTH:  # more of a workload that is counted by itself
                standing.add_reserved(entry.grant.amounts if entry.grant is not None else {}, settled=False)
                continue
            if entry.phase is not Phase.ADMITTED:
                standing.count_pending()
            if entry.grant is not None and entry.phase in HOLDING:
                # A nomination holds quota and is not admitted.
                settled = entry.phase is Phase.ADMITTED and key not in unchecked
                standing.count_reserving(entry.grant.amounts, settled=settled)
    for unit, held in queues.quotas.held.items():
        if role_of(unit) is Role.ORPHAN and (standing := cluster.get(held.queue)) is not None:
            standing.add_reserved(held.amounts, settled=True)
    return Standings(cluster, _cohorts(queues, cluster), local)


def _cohorts(queues: Queues, cluster: Mapping[str, Standing]) -> dict[str, Standing]:
    tree = queues.quotas.tree
    cohorts = {name: _cohort(queues, node) for name, node in tree.cohorts.items()}
    for name, standing in cluster.items():
        for node in tree.queues[name].path:
            cohorts[node.name].add_below(standing)
    return cohorts


def _cohort(queues: Queues, node: TreeNode) -> Standing:
    active, reason, message = _cohort_activity(node)
    declared = queues.quotas.cohorts.get(node.name)
    if active and declared is not None and declared.by_use and queues.rules.use is None:
        message += f"; {COHORT_NO_EFFECT}"
    found = Standing(
        active,
        reason,
        message,
        reserved=dict.fromkeys(node.quota, 0),
        nominal=dict(node.subtree),
        counted=node.usage,
        share=_share_of(queues, node),
    )
    found.tell_cohort_use(queues.quotas, node)
    return found


def _cohort_activity(node: TreeNode) -> tuple[bool, Reason, str]:
    if cycle := node.root.cycle:
        return False, Reason.COHORT_CYCLE, in_circle(cycle)
    if node.parent is not None and not node.parent.exists:
        return True, Reason.READY, missing_parent(node.declared)
    if not node.children:
        return True, Reason.READY, "no ClusterQueue and no Cohort names it: its quota is nobody's to use"
    return True, Reason.READY, LENDS


def _cluster(queues: Queues, queue: ClusterQueue, known: Collection[str]) -> Standing:
    active, reason, message = _activity(queues, queue, known)
    if active and queue.by_use and queues.rules.use is None:
        message += f"; {NO_EFFECT}"
    nominal = {key: quota.nominal for key, quota in quotas_of(queue.groups).items()}
    node = queues.quotas.tree.queues[queue.name]
    found = Standing(
        active,
        reason,
        message,
        reserved=dict.fromkeys(nominal, 0),
        used=dict.fromkeys(nominal, 0),
        nominal=nominal,
        share=_share_of(queues, node),
    )
    found.tell_cohort_use(queues.quotas, node)
    return found


def _share_of(queues: Queues, node: TreeNode) -> int | None:
    if not queues.rules.fair or node.parent is None:
        return None
    infinite, found = queues.quotas.tree.share_of(node, {}, {})
    # JSON has no infinity, and the field is an integer of 64 bits. Rounded up as Kueue does (roundedWeightedShare,
    # 0.19.2), so that 0 says that nothing is borrowed. Of a quota that was lowered far below what is used, or with a
    # tiny weight, it may be more than the field holds.
    return INFINITE_SHARE if infinite else min(ceil(found), INFINITE_SHARE)


def _local(queues: Queues, queue: LocalQueue, cluster: Mapping[str, Standing]) -> Standing:
    active, reason, message = _local_activity(queues, queue, cluster)
    ahead = cluster.get(queue.cluster_queue)
    named = ahead.nominal if ahead is not None and ahead.nominal is not None else {}
    found = Standing(active, reason, message, reserved=dict.fromkeys(named, 0), used=dict.fromkeys(named, 0))
    line = queues.pending.lines.get(queue.cluster_queue)
    if line is not None and line.by_use and queue.cluster_queue in queues.quotas.queues:
        found.tell_use(queues.use, queue.part)
    return found


def _activity(queues: Queues, queue: ClusterQueue, known: Collection[str]) -> tuple[bool, Reason, str]:
    if cycle := queues.quotas.cycle_of(queue.name):
        return False, Reason.COHORT_CYCLE, in_circle(cycle)
    if queue.stop is not Stop.NONE:
        return False, Reason.QUEUE_STOPPED, f"it is stopped (stopPolicy {queue.stop}): nothing is admitted"
    lacking = [flavor.flavor for group in queue.groups for flavor in group.flavors if flavor.flavor not in known]
    for group in queue.groups:
        # One flavor of a group is enough to admit; a group without any stops whoever asks for its resources.
        if all(flavor.flavor in lacking for flavor in group.flavors):
            names = ", ".join(flavor.flavor for flavor in group.flavors)
            text = f"there is no ResourceFlavor {names}: nothing that asks for {', '.join(group.resources)} is admitted"
            return False, Reason.NO_FLAVOR, text
    if lacking:
        text = f"can admit workloads, but there is no ResourceFlavor {', '.join(lacking)}, which is skipped"
        return True, Reason.READY, text
    if not queue.groups and not queue.unlimited:
        return True, Reason.READY, "has no resourceGroups: only workloads that ask for no resource can be admitted"
    return True, Reason.READY, "can admit workloads"


def _local_activity(queues: Queues, queue: LocalQueue, cluster: Mapping[str, Standing]) -> tuple[bool, Reason, str]:
    name = queue.cluster_queue
    ahead, found = cluster.get(name), queues.quotas.queues.get(name)
    if ahead is None or found is None:
        return False, Reason.NO_QUEUE, f"there is no ClusterQueue {name}"
    if queue.stop is not Stop.NONE:
        return False, Reason.QUEUE_STOPPED, f"it is stopped (stopPolicy {queue.stop}): nothing is admitted"
    if not serves(found, queues.config.namespaces.get(queue.namespace, {})):
        text = f"the namespaceSelector of ClusterQueue {name} does not select namespace {queue.namespace}"
        return False, Reason.NAMESPACE_NOT_SELECTED, text
    return ahead.active, ahead.reason, ahead.message if ahead.active else f"ClusterQueue {name}: {ahead.message}"


def body(standing: Standing) -> dict[str, Any]:
    """The ``status`` of a queue or cohort, less what goes by time: its condition ``Active``, and use over time."""
    # The status of a Cohort has no flavorsUsage: the API server would drop it, and it would be written for ever.
    used = {} if standing.counted is not None else {"flavorsUsage": _usages(standing, standing.used)}
    return {
        "pendingWorkloads": standing.pending,
        "reservingWorkloads": standing.reserving,
        "admittedWorkloads": standing.admitted,
        "flavorsReservation": _usages(standing, standing.reserved),
        **used,
        "fairSharing": None if standing.share is None else {"weightedShare": standing.share},
    }


def _usages(standing: Standing, amounts: Mapping[FlavorResource, int]) -> list[dict[str, Any]]:
    flavors: dict[str, list[dict[str, str]]] = {}
    for key, amount in amounts.items():
        flavor, resource = key
        # One more would have the API server refuse the whole status.
        if (len(flavors) == MOST_FLAVORS and flavor not in flavors) or len(flavors.get(flavor, ())) == MOST_RESOURCES:
            continue
        usage = {"name": resource, "total": format_quantity(resource, amount)}
        borrowed = standing.borrowed(amounts, key)
        if borrowed is not None:
            usage["borrowed"] = format_quantity(resource, borrowed)
        flavors.setdefault(flavor, []).append(usage)
    return [{"name": flavor, "resources": resources} for flavor, resources in flavors.items()]
