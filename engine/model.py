"""Plain data that the engine decides on, with no behaviour but construction and views; quantities are integers.

Amounts: ``cpu`` in milli-CPU, ``memory``, ``ephemeral-storage`` and ``hugepages-*`` in bytes, everything else
(``pods``, ``nvidia.com/gpu``) in units. Structs are frozen and untracked by the garbage collector, because a controller
keeps one a node and one a pod.
"""

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from engine.claims.asks import DeviceAsk
from engine.kubelet.machine import NumaPlacement, PodShape
from engine.quantity import format_quantity
from engine.reasons import Reason

HOSTNAME_LABEL = "kubernetes.io/hostname"
PODS = "pods"
NODES_PER_OPENED_DOMAIN = 4  # so many more nodes a placement may use to leave a domain whole, by default
VOLUMES_OF = "volumes of "  # and a CSI driver or class: no legal resource name, so that nobody else's is meant
NO_LIMIT = 1 << 40  # volumes: a node that names no limit takes as many as anybody asks for

Amounts = dict[str, int]


class Policy(StrEnum):
    """How strictly a pod set asks for its level."""

    REQUIRED = "Required"
    PREFERRED = "Preferred"
    UNCONSTRAINED = "Unconstrained"


class _Struct(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    pass


class Taint(_Struct, frozen=True):
    """A node taint; effects are NoSchedule, PreferNoSchedule and NoExecute."""

    key: str
    effect: str
    value: str = ""


class Toleration(_Struct, frozen=True):
    """A pod toleration; an empty key with ``Exists`` tolerates everything, an empty effect matches all effects."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class LabelRequirement(_Struct, frozen=True):
    """One label (or field) requirement: operator is In, NotIn, Exists, DoesNotExist, Gt or Lt."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class NodeTerm(_Struct, frozen=True, cache_hash=True):
    """One node selector term: all its requirements hold. A term with neither list matches no node."""

    labels: tuple[LabelRequirement, ...] = ()
    fields: tuple[LabelRequirement, ...] = ()  # only metadata.name exists


class Attached(_Struct, frozen=True):
    """The volumes that a pod, or each pod of a pod set, has attached to its node, by what limits them (`volumes_of`).

    ``own``: how many that no other pod has. ``shared``: (limit, volume) of those that others may have too; one is
    attached to a node once, whatever pods there have it.
    """

    own: Amounts = {}
    shared: tuple[tuple[str, str], ...] = ()

    def beside(self, requests: Amounts) -> Amounts:
        """What is taken of a node by who asks for this: resources, and of volumes those that are its own."""
        return requests | self.own if self.own else requests

    @property
    def most(self) -> Amounts:
        """How many fewer a node has without the pod, at most: as if nobody else there had those that it shares."""
        found = dict(self.own)
        for limit, _ in self.shared:
            found[limit] = found.get(limit, 0) + 1
        return found


NOTHING_ATTACHED = Attached()


def volumes_of(driver: str) -> str:
    """What limits the volumes of a CSI driver on a node, named like a resource."""
    return VOLUMES_OF + driver


def local_volumes_of(storage_class: str) -> str:
    """The same for volumes that are on nodes already, and that claims of a class may be bound to; no driver's name."""
    return f"{VOLUMES_OF}storage class {storage_class}"


def is_volume_limit(resource: str) -> bool:
    """Whether it is not a resource but a limit: of a node that does not name it there is no end."""
    return resource.startswith(VOLUMES_OF)


def amount_in_words(resource: str, amount: int) -> str:
    """``8 nvidia.com/gpu``, ``64Gi memory``, ``1 volume of ebs.csi.aws.com``."""
    # Only the first: a driver's name may contain the word.
    if amount == 1 and is_volume_limit(resource):
        resource = resource.replace("volumes", "volume", 1)
    return f"{format_quantity(resource, amount)} {resource}"


class PodTerm(_Struct, frozen=True):
    """One required pod (anti-)affinity term.

    ``selector`` None selects no pod, () every pod. ``namespaces`` None means every namespace (an empty
    namespaceSelector), else the listed ones. ``unsupported`` names what could not be expressed (a namespaceSelector by
    label, matchLabelKeys): the engine then refuses the pod set with that text instead of ignoring it. ``host_port``:
    the port of the host that it stands for, in words; "" where it is the pod's own term.
    """

    topology_key: str
    selector: tuple[LabelRequirement, ...] | None = None
    namespaces: tuple[str, ...] | None = ()
    unsupported: str = ""
    host_port: str = ""

    @property
    def repels(self) -> Reason:
        """What it is called where it keeps pods apart."""
        return Reason.HOST_PORTS if self.host_port else Reason.POD_ANTI_AFFINITY


class SpreadConstraint(_Struct, frozen=True):
    """One topologySpreadConstraint with ``whenUnsatisfiable: DoNotSchedule``."""

    topology_key: str
    max_skew: int
    selector: tuple[LabelRequirement, ...] | None = None
    min_domains: int = 1
    unsupported: str = ""


class Node(_Struct, frozen=True):
    """A Kubernetes node as placement sees it. ``attachable``: how many volumes, by limit (`volumes_of`).

    ``features``: what its kubelet declares of what pods may need.
    """

    name: str
    labels: dict[str, str] = {}
    allocatable: Amounts = {}
    attachable: Amounts = {}
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    ready: bool = True
    features: tuple[str, ...] = ()


class Pod(_Struct, frozen=True):
    """A pod that is bound to a node and has not finished: what it takes there.

    ``claim`` is (workload key, pod set name) where the pod verifiably fills a slot of that reservation; a foreign
    pod has none. One of ``pods`` is charged where ``requests`` does not name ``pods``. ``shape`` is what its kubelet
    looks at; ``placement`` is what it holds inside the node, observed before predicted;
    ``observed`` says which. ``devices``: the claims for which it has no devices
    yet; what it has is told by the claims. ``terminating``: it was told to end, and has not yet.
    """

    key: str
    node: str
    requests: Amounts
    namespace: str = ""
    labels: dict[str, str] = {}
    anti_affinity: tuple[PodTerm, ...] = ()
    claim: tuple[str, str] | None = None
    shape: PodShape | None = None
    placement: NumaPlacement | None = None
    observed: bool = False
    attached: Attached = NOTHING_ATTACHED
    devices: DeviceAsk | None = None
    terminating: bool = False

    @property
    def takes(self) -> Amounts:
        """What it takes of its node (`Attached.beside`)."""
        return self.attached.beside(self.requests)


# What tools write where they do not know a node's place: Topograph 1.0 labels a node without a known switch
# ``tier-0=no-topology`` (0.5: ``leaf=no-topology``). Nodes that share such a value may be anywhere.
UNKNOWN_VALUES: Final = frozenset({"no-topology", "none", "unknown"})


def domain_value(labels: Mapping[str, str], level: str, unknown: Collection[str]) -> str:
    """The domain of a level that a node's labels name; "" where they name none, or say that it is not known."""
    value = labels.get(level, "")
    # A kubelet writes its own host name, whatever that is.
    return "" if value in unknown and level != HOSTNAME_LABEL else value


class Flavor(_Struct, frozen=True):
    """A resource flavor with a topology: which nodes, and their levels from the widest to the narrowest.

    ``taints``: what pods must tolerate to be placed here, whether its nodes have them by now or not. ``unknown``:
    values of levels that name no domain.
    """

    name: str
    levels: tuple[str, ...]
    node_labels: dict[str, str] = {}
    tolerations: tuple[Toleration, ...] = ()
    taints: tuple[Taint, ...] = ()
    unknown: frozenset[str] = UNKNOWN_VALUES

    def value(self, labels: Mapping[str, str], level: str) -> str:
        """The domain of a level that a node's labels name; "" where they name none."""
        return domain_value(labels, level, self.unknown)


class SliceLayer(_Struct, frozen=True):
    """Each run of ``size`` consecutive ranks shares one domain of ``level``; ``alone``: with no other such run."""

    level: str
    size: int
    alone: bool = False


class ShareRule(_Struct, frozen=True):
    """A domain of ``level`` takes no more once it has over ``most`` thousandths of what counts (`ShareLimits`).

    Not ``required``: such a domain comes last.
    """

    level: str
    most: int
    required: bool = True


class ShareLimits(_Struct, frozen=True):
    """How large a share of what belongs together a domain may have when one more comes.

    What counts: workloads of the namespace whose pods have one of ``values`` under the label ``key``; without a key
    those of the same ``owner`` that have limits too. Each level has one rule.
    """

    rules: tuple[ShareRule, ...]
    key: str = ""
    values: tuple[str, ...] = ()
    owner: str = ""


class TopologyRequest(_Struct, frozen=True):
    """The level is None for unconstrained only; ``auto`` was resolved to the narrowest level before.

    ``slices``: slices within slices, the widest first, each size a multiple of the next. They hold whatever the policy.
    ``shares``: beside a required level.
    """

    policy: Policy
    level: str | None = None
    slices: tuple[SliceLayer, ...] = ()
    shares: ShareLimits | None = None

    @property
    def limited_levels(self) -> tuple[str, ...]:
        """The levels that a flavor must have for its rules."""
        return () if self.shares is None else tuple([rule.level for rule in self.shares.rules if rule.required])


class Pinned(_Struct, frozen=True):
    """So many pods of a pod set go only where all of these let them, like `PodSet.volume_nodes` of all its pods.

    ``own``: as `Attached.own`, of each of them.
    """

    nodes: tuple[tuple[NodeTerm, ...], ...]
    count: int
    own: Amounts = {}


class PodSet(_Struct, frozen=True):
    """Pods of one workload with one template.

    ``requests`` is of one pod; one of ``pods`` is added by the engine where ``requests`` does not name ``pods``. Pod
    sets of one workload with the same non-empty ``group`` (a leader and its workers) share one domain of the requested
    level, and the pods of the smaller one sit with the first pods of the other. With a ``shape``, nodes whose inside is
    known count what their kubelet would admit. ``volume_nodes``: for each volume that does not reach all nodes, the
    terms (ORed) of those that it reaches; all of them hold. ``pinned``: the same for volumes that single pods have.
    ``devices``: the claims of each pod. ``claim_nodes``: as ``volume_nodes``, for each claim that has devices already.
    ``features``: what the kubelet of its node must declare.
    ``cut``: what one pod asks for where that is more than can be counted (`engine.quantity.MOST`); for messages.
    """

    name: str
    count: int
    requests: Amounts
    topology: TopologyRequest
    namespace: str = ""
    labels: dict[str, str] = {}
    node_selector: dict[str, str] = {}
    node_affinity: tuple[NodeTerm, ...] | None = None  # terms are ORed; None = no constraint
    tolerations: tuple[Toleration, ...] = ()
    affinity: tuple[PodTerm, ...] = ()
    anti_affinity: tuple[PodTerm, ...] = ()
    spread: tuple[SpreadConstraint, ...] = ()
    group: str = ""
    shape: PodShape | None = None
    volume_nodes: tuple[tuple[NodeTerm, ...], ...] = ()
    pinned: tuple[Pinned, ...] = ()
    attached: Attached = NOTHING_ATTACHED
    devices: DeviceAsk | None = None
    claim_nodes: tuple[tuple[NodeTerm, ...], ...] = ()
    features: tuple[str, ...] = ()
    cut: Amounts = {}

    @property
    def takes(self) -> Amounts:
        """What each of its pods takes of its node (`Attached.beside`)."""
        return self.attached.beside(self.requests)

    @property
    def together(self) -> "PodSet":
        """The same with all pods where the volumes of all of them reach."""
        if not self.pinned:
            return self
        nodes = dict.fromkeys([*self.volume_nodes, *(terms for part in self.pinned for terms in part.nodes)])
        return msgspec.structs.replace(self, volume_nodes=tuple(nodes), pinned=())
