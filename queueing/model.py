"""Plain data that queueing decides on; converted from the API kinds elsewhere. No behaviour beyond construction.

Amounts are integers as in the engine: ``cpu`` in milli-CPU, memory in bytes, everything else in units. Times are
seconds on one clock, the one that `now` is read from; creation times must be on it too (seconds since the epoch do).
"""

from collections.abc import Iterable
from enum import StrEnum
from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from engine.cluster.filters import selects
from engine.cluster.natural_order import NaturalKey, natural
from engine.model import Amounts, LabelRequirement, PodSet, Taint, Toleration
from engine.preemption.model import ChoiceRules as VictimRules
from engine.preemption.model import Strategy
from engine.quantity import in_bytes
from engine.reservation_key import HolderKey, workload_of

AUTO: Final = "auto"  # a requested level: the narrowest of whichever flavor is tried

FlavorResource = tuple[str, str]  # (flavor name, resource name)
Quantities = dict[FlavorResource, int]


class Stop(StrEnum):
    """Whether a queue admits."""

    NONE = "None"
    HOLD = "Hold"  # admits nothing more
    DRAIN = "HoldAndDrain"  # and what is admitted is evicted


class Within(StrEnum):
    """Which workloads of the preemptor's own cluster queue may be preempted."""

    NEVER = "Never"
    LOWER = "LowerPriority"
    LOWER_OR_NEWER = "LowerOrNewerEqualPriority"


class Reclaim(StrEnum):
    """Which workloads of other queues of the cohort may be preempted, where those queues borrow."""

    NEVER = "Never"
    LOWER = "LowerPriority"
    ANY = "Any"


class NonPreemptible(StrEnum):
    """Who may say in a queue that a workload is nobody's victim; of a workload: who says it of this one."""

    NEVER = "Never"  # nobody
    BY_CLASS = "ByClass"  # its priority class, which administrators write
    BY_WORKLOAD = "ByWorkload"  # the workload itself


class _Struct(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    pass


class Quota(_Struct, frozen=True):
    """Quota of one resource in one flavor.

    ``borrowing``: how much more than nominal may be used (None: no limit). ``lending``: how much of nominal the parent
    may use (None: all of it). Both count only where there is a parent; of a cohort, against all that is below it.
    """

    nominal: int
    borrowing: int | None = None
    lending: int | None = None


class FlavorQuotas(_Struct, frozen=True):
    """Quota by resource in one flavor."""

    flavor: str
    resources: dict[str, Quota]


class ResourceGroup(_Struct, frozen=True):
    """Resources that a pod set takes from one flavor together; flavors in the order in which they are tried."""

    resources: tuple[str, ...]
    flavors: tuple[FlavorQuotas, ...]


class Preemption(_Struct, frozen=True):
    """Whom a queue's workloads may preempt.

    ``borrowing``: whether a workload that would itself borrow may preempt workloads of lower priority in other queues;
    ``threshold``: then only those of at most this priority (None: no bound). ``strategy``, ``alpha``: which victims are
    the least (None: as `Rules.victims` say). ``non_preemptible``: whose word makes a workload nobody's victim.
    """

    within: Within = Within.NEVER
    reclaim: Reclaim = Reclaim.NEVER
    borrowing: bool = False
    threshold: int | None = None
    strategy: Strategy | None = None
    alpha: float | None = None
    non_preemptible: NonPreemptible = NonPreemptible.BY_CLASS

    @property
    def any(self) -> bool:
        """Whether it may preempt at all."""
        return self.within is not Within.NEVER or self.reclaim is not Reclaim.NEVER

    def is_protected(self, workload: "Workload") -> bool:
        """Whether a workload of the queue is nobody's victim, as far as it does not borrow."""
        said, believed = workload.non_preemptible, self.non_preemptible
        if NonPreemptible.NEVER in {said, believed}:
            return False
        return said is NonPreemptible.BY_CLASS or believed is NonPreemptible.BY_WORKLOAD

    def victims(self, rules: VictimRules) -> VictimRules:
        """Which victims are the least for the queue; ``rules``: for all queues that do not say it."""
        if self.strategy is None and self.alpha is None:
            return rules
        scoring = rules.scoring if self.alpha is None else replace(rules.scoring, alpha=self.alpha)
        return VictimRules(self.strategy or rules.strategy, scoring)


class ClusterQueue(_Struct, frozen=True):
    """Quota of flavors and resources, and the rules of its use.

    ``cohort``: its parent in the tree of cohorts, "" means none. ``strict``: StrictFIFO, else BestEffortFIFO.
    ``namespaces``: a label selector over namespaces, None selects none, () all. ``borrow_first``: borrow in a flavor
    before the next flavor is tried (whenCanBorrow MayStopSearch); ``preempt_first``: likewise preempt (whenCanPreempt
    MayStopSearch); ``preempt_before_borrow``: of flavors that were tried, preempt in one rather than borrow in another
    (PreemptionOverBorrowing). ``weight``: share in fair sharing, in thousandths. ``unlimited``: no quota at all, for
    workloads without a queue. ``claims``: workloads that wait long keep room from others. ``by_use``: its LocalQueues
    take turns by what they used.
    """

    name: str
    groups: tuple[ResourceGroup, ...] = ()
    cohort: str = ""
    strict: bool = False
    namespaces: tuple[LabelRequirement, ...] | None = ()
    borrow_first: bool = True
    preempt_first: bool = False
    preempt_before_borrow: bool = False
    preemption: Preemption = Preemption()
    stop: Stop = Stop.NONE
    weight: int = 1000
    unlimited: bool = False
    claims: bool = True
    by_use: bool = False


class Cohort(_Struct, frozen=True):
    """Quota that a cohort has beside that of its queues, and what it may lend and borrow with all that is below it.

    ``parent`` "" means none. ``weight``: share in fair sharing among the children of its parent, in thousandths.
    ``by_use``: its own children take turns by what they used of the others' over time.
    """

    name: str
    groups: tuple[ResourceGroup, ...] = ()
    parent: str = ""
    weight: int = 1000
    by_use: bool = False


class LocalQueue(_Struct, frozen=True):
    """Where the workloads of one namespace are submitted. ``weight``: its share over time, in thousandths."""

    namespace: str
    name: str
    cluster_queue: str
    stop: Stop = Stop.NONE
    weight: int = 1000

    @property
    def part(self) -> str:
        """What tells it from the other LocalQueues of its cluster queue."""
        return part_of(self.namespace, self.name)


class PlainFlavor(_Struct, frozen=True):
    """A flavor without a topology: quota only, the engine does not know it. ``taints``: what pods must tolerate."""

    name: str
    node_labels: dict[str, str] = {}
    tolerations: tuple[Toleration, ...] = ()
    taints: tuple[Taint, ...] = ()


class Workload(_Struct, frozen=True):
    """What is submitted.

    ``pod_sets`` are the engine's; a requested level may be ``auto``. ``at_least``: pod set name -> how few pods are
    still of use (at most one entry; absent: all or nothing). ``created``: orders workloads of equal priority; for one
    that was evicted the time of its return, where the rules say that it goes to the back. ``uid`` tells it from an
    earlier one of the same key. ``by_slices``: it may lose some of its slices, and keeps the others
    (`queueing.queues.eviction_units`). ``one_by_one``: where it grows, each pod (each slice) more is of use by itself.
    ``pod_priority``: that of its pods in Kubernetes, where it is not ``priority``.
    ``preempts``: whether it may have others evicted. ``non_preemptible``: who says that it is nobody's victim.
    ``row``: orders those that were created at one time, before their keys (a trace's rows).
    ``charged``: by pod set, what one of its pods takes of quota, where that is not what it takes of its node: devices
    of resource claims count for quota alone. ``follows``: the keys of those that it replaces bit by bit, the older
    revisions of its Deployment. ``owner``: the kind and name of the object that people know it by, for messages.
    """

    key: HolderKey  # under which it holds room and quota
    namespace: str
    queue: str  # the LocalQueue
    pod_sets: tuple[PodSet, ...]
    priority: int = 0
    created: float = 0.0
    uid: str = ""
    at_least: dict[str, int] = {}
    by_slices: bool = False
    one_by_one: bool = False
    pod_priority: int | None = None
    preempts: bool = True
    non_preemptible: NonPreemptible = NonPreemptible.NEVER
    charged: dict[str, Amounts] = {}
    follows: tuple[str, ...] = ()
    row: int = 0
    owner: str = ""

    @property
    def title(self) -> str:
        """What people are told that it is: ``Job team-a/train``."""
        return self.owner or str(self.key)

    @property
    def part(self) -> str:
        """The LocalQueue, among all."""
        return part_of(self.namespace, self.queue)

    @property
    def base(self) -> str:
        """The workload itself, where this is more of its pods."""
        return workload_of(self.key)

    @property
    def outranks(self) -> int:
        """Pods below this priority come after its own for kube-scheduler too, so they cannot take its room back."""
        # kube-scheduler preempts by the pods' priority, whatever the queue thinks of the workload.
        return self.priority if self.pod_priority is None else min(self.priority, self.pod_priority)


class OutsidePod(_Struct, frozen=True):
    """A bound pod that no queue admitted and that may be evicted: ``key`` is ``namespace/name``."""

    key: str
    uid: str
    node: str
    priority: int
    requests: Amounts
    created: float = 0.0


class UseRules(_Struct, frozen=True):
    """How use over time is counted, in seconds.

    ``half_life``: use that lies this long back counts half. ``sampling``: how often it is counted, as Kueue does (None:
    every change counts at once). ``weights``: how much a unit of a resource counts, where that is not as `weight_of`
    says.
    """

    half_life: float
    sampling: float | None = None
    weights: dict[str, float] = {}

    def weight_of(self, resource: str) -> float:
        """How much one unit of a resource (a core, a byte, a device) counts."""
        # Amounts in bytes would drown all others, which is what they do in Kueue 0.19.2 unless their weight is set.
        return self.weights.get(resource, 0.0 if in_bytes(resource) else 1.0)


class Rules(_Struct, frozen=True):
    """What holds for all queues.

    ``patience``: seconds after which those behind one that waits leave it the room it needs, where they fit elsewhere;
    ``hold``: seconds after which they do in any case. ``fair``: queues of a cohort take turns by dominant resource
    share, and victims are taken from those above theirs. ``victims``: which victims are the least, where a queue does
    not say it. ``pods``: pods that no queue admitted may be victims too, where their priority is lower. ``override``:
    who borrows is a victim also where budgets protect it, for a queue that takes back nominal quota. ``leaving``:
    seconds for which who leaves is believed to do so (`queueing.queues.leaving`); 0: never. ``use``: how use over time
    is counted (None: it is not).
    """

    patience: float = 300.0
    # A week. In sixteen simulated months at load 1.0 the mean wait was 18% longer with three days, and no more GPUs
    # were in use: large jobs wait for each other's closed rooms (docs/simulate.md).
    hold: float = 604_800.0
    leaving: float = 60.0
    fair: bool = False
    victims: VictimRules = VictimRules()
    pods: bool = False
    override: bool = False
    use: UseRules | None = None


class Order(NamedTuple):
    """A place in a queue.

    The API server's times are whole seconds, so many are created at one time: then ``row`` decides, then names, with
    their numbers read as numbers (job-2 comes before job-10).
    """

    later: int  # high priority first
    created: float
    row: int
    name: NaturalKey
    key: str


# Whether a queue or cohort of weight 0 borrows, and its share: the largest part of what its parent may use that it uses
# beyond its own, in thousandths, divided by its weight. Of two with weight 0 that borrow the undivided parts count, as
# Kueue's CompareDRS has it (pkg/cache/scheduler/fair_sharing.go, 0.19.2).
Share = tuple[bool, float]
NO_SHARE: Final[Share] = (False, 0.0)


class Rank(NamedTuple):
    """What decides between the workloads of several queues which one goes first; the least is first.

    ``level``: how high up it would borrow what it asks for (`queueing.queues.quota.Quotas.borrowing_level`); with fair
    sharing 1 if it would. ``share``: of its queue with what it asks for, where sharing is fair.
    """

    level: int
    share: Share
    order: Order


def part_of(namespace: str, queue: str) -> str:
    """What tells a LocalQueue from the others of its cluster queue: ``namespace/name``."""
    return f"{namespace}/{queue}"


def order(workload: Workload) -> Order:
    """Who goes first in a queue: high priority, then early, then by row and key."""
    return Order(-workload.priority, workload.created, workload.row, natural(str(workload.key)), workload.base)


# Suffixes: these labels exist with prefixes (batch.kubernetes.io, jobset.sigs.k8s.io) and without one.
_OF_ONE_JOB: Final = ("job-name", "controller-uid", "jobset-name", "jobset-uid", "job-key", "group-key")


def shape(workload: Workload) -> bytes:
    """What an answer depends on besides queue and priority: equal shapes get equal answers.

    The labels that tell one job's pods from another's are left out, unless the pods themselves look at labels.
    """
    return digest(
        [plain(pod_set) for pod_set in workload.pod_sets],
        workload.at_least,
        workload.preempts,
        workload.non_preemptible,
        workload.charged,
        workload.follows,
    )


def digest(*parts: object) -> bytes:
    """What stands for all of this where answers are remembered: templates may be large, and anybody makes them."""
    return blake2b(msgspec.msgpack.encode(parts), digest_size=32).digest()


def plain(pod_set: PodSet) -> PodSet:
    """A pod set without the labels that are those of one job only, unless its pods look at labels."""
    # With affinity the label that tells jobs apart may be what it looks for, so equal templates are not equal requests.
    if looks_at_pods(pod_set) or not pod_set.labels:
        return pod_set
    labels = {key: value for key, value in pod_set.labels.items() if not key.endswith(_OF_ONE_JOB)}
    return msgspec.structs.replace(pod_set, labels=labels)


def looks_at_pods(pod_set: PodSet) -> bool:
    """Whether where its pods may go depends on whose pods are where."""
    return bool(pod_set.affinity or pod_set.anti_affinity or pod_set.spread)


def asks_of(workload: Workload) -> dict[str, Amounts]:
    """What one pod of each pod set asks for of quota."""
    return {pod_set.name: workload.charged.get(pod_set.name, pod_set.requests) for pod_set in workload.pod_sets}


def exceeds(asked: Amounts, granted: Amounts) -> bool:
    """Whether somebody asks for more than was granted, of anything."""
    return any(amount > granted.get(resource, 0) for resource, amount in asked.items())


def at_least(one: Amounts, other: Amounts) -> Amounts:
    """The larger of two amounts of each resource."""
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in {**one, **other}}


def usage(requests: Amounts, count: int) -> Amounts:
    """What so many pods take in all, one of ``pods`` each included."""
    return {resource: amount * count for resource, amount in {"pods": 1, **requests}.items()}


def quotas_of(groups: Iterable[ResourceGroup]) -> dict[FlavorResource, Quota]:
    """The quotas of resource groups, by flavor and resource."""
    return {
        (flavor.flavor, resource): quota
        for group in groups
        for flavor in group.flavors
        for resource, quota in flavor.resources.items()
    }


def serves(queue: ClusterQueue, labels: dict[str, str]) -> bool:
    """Whether workloads of a namespace with these labels may use the queue."""
    return selects(queue.namespaces, labels)
