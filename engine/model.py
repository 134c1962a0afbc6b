"""Plain data that the engine decides on. No behaviour beyond construction; quantities are integers.

Amounts: ``cpu`` in milli-CPU, ``memory``, ``ephemeral-storage`` and ``hugepages-*`` in bytes, everything else
(``pods``, ``nvidia.com/gpu``) in units. Structs are frozen and untracked by the garbage collector, because a controller
keeps one a node and one a pod.
"""

from enum import StrEnum

import msgspec

from engine.kubelet.machine import NumaPlacement, PodShape

HOSTNAME_LABEL = "kubernetes.io/hostname"
PODS = "pods"

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


class Requirement(_Struct, frozen=True):
    """One label (or field) requirement: operator is In, NotIn, Exists, DoesNotExist, Gt or Lt."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class NodeTerm(_Struct, frozen=True):
    """One node selector term: all its requirements hold. A term with neither list matches no node."""

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()  # only metadata.name exists


class PodTerm(_Struct, frozen=True):
    """One required pod (anti-)affinity term.

    ``selector`` None selects no pod, () every pod. ``namespaces`` None means every namespace (an empty
    namespaceSelector), else the listed ones. ``unsupported`` names what could not be expressed (a namespaceSelector by
    label, matchLabelKeys): the engine then refuses the pod set with that text instead of ignoring it.
    """

    topology_key: str
    selector: tuple[Requirement, ...] | None = None
    namespaces: tuple[str, ...] | None = ()
    unsupported: str = ""


class SpreadConstraint(_Struct, frozen=True):
    """One topologySpreadConstraint with ``whenUnsatisfiable: DoNotSchedule``."""

    topology_key: str
    max_skew: int
    selector: tuple[Requirement, ...] | None = None
    min_domains: int = 1
    unsupported: str = ""


class Node(_Struct, frozen=True):
    """A Kubernetes node as placement sees it."""

    name: str
    labels: dict[str, str] = {}
    allocatable: Amounts = {}
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    ready: bool = True


class Pod(_Struct, frozen=True):
    """A pod that is bound to a node and has not finished: what it takes there.

    ``claim`` is (workload key, pod set name) where the pod verifiably fills a slot of that reservation; a foreign
    pod has none. One of ``pods`` is charged where ``requests`` does not name ``pods``. ``shape`` is what its kubelet
    looks at; ``placement`` is what it holds inside the node, observed before predicted (``numa.rebuild.resolve``);
    ``observed`` says which.
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


class Flavor(_Struct, frozen=True):
    """A resource flavor with a topology: which nodes, and their levels from the widest to the narrowest.

    ``taints``: what pods must tolerate to be placed here, whether its nodes have them by now or not.
    """

    name: str
    levels: tuple[str, ...]
    node_labels: dict[str, str] = {}
    tolerations: tuple[Toleration, ...] = ()
    taints: tuple[Taint, ...] = ()


class SliceLayer(_Struct, frozen=True):
    """Each run of ``size`` consecutive ranks shares one domain of ``level``; ``alone``: with no other such run."""

    level: str
    size: int
    alone: bool = False


class TopologyRequest(_Struct, frozen=True):
    """The level is None for unconstrained only; ``auto`` was resolved to the narrowest level before.

    ``slices``: slices within slices, the widest first, each size a multiple of the next. They hold whatever the policy.
    """

    policy: Policy
    level: str | None = None
    slices: tuple[SliceLayer, ...] = ()


class PodSet(_Struct, frozen=True):
    """Pods of one workload with one template.

    ``requests`` is of one pod; one of ``pods`` is added by the engine where ``requests`` does not name ``pods``. Pod
    sets of one workload with the same non-empty ``group`` (a leader and its workers) share one domain of the requested
    level, and the pods of the smaller one sit with the first pods of the other. With a ``shape``, nodes whose inside is
    known count what their kubelet would admit.
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
