"""What a search for victims on nodes is asked, what it looks at, and what it answers. Plain data.

Priorities are those of Kubernetes: higher is more important, 0 is the default, negative ones exist. In a sum of
priorities a negative one counts as 0, so that nobody is evicted only because that makes the sum smaller.
"""

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Final, NamedTuple

import msgspec

from engine.kubelet.machine import Amounts, Layout, NumaPlacement, PodShape, State
from engine.reservation_key import HolderKey

NOBODY: Final = -(1 << 63)  # the highest priority of no victims

Key = tuple[float, ...]  # what is compared, less first


class TopologyQos(StrEnum):
    """How much the topology of the room matters, beyond what the shape of the pod says already.

    ``topogate.dev/topology-qos`` is in the shape: what it does not guarantee is no wish there.
    """

    GUARANTEED = "guaranteed"  # what the kubelet and the pod's own wish would not take is no room
    BEST_EFFORT = "best-effort"  # the wish ranks, and only the kubelet refuses
    BLIND = "none"  # amounts of whole nodes, as kube-scheduler counts


class Strategy(StrEnum):
    """What is least."""

    LEAST_PRIORITY = "LeastPriority"
    INCREMENTAL_MINIMAL = "IncrementalMinimal"


class Landing(IntEnum):
    """Where the preemptor's CPUs, memory and devices come from; less is better."""

    ZONE = 0
    SOCKET = 1
    ACROSS = 2
    UNKNOWN = 3  # the inside of the node is not known


class Scoring(msgspec.Struct, frozen=True):
    """Equation 1 of the paper: ``S = alpha / sum(priority) + (1 - alpha) * T``, T by where the preemptor lands.

    docs/preemption.md argues for the defaults.

    Raises:
        ValueError: alpha is not from 0 to 1, or T is not high >= medium >= low.
    """

    alpha: float = 0.5
    high: float = 1.0
    medium: float = 0.5
    low: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha: must be from 0 to 1, not {self.alpha}")
        if not self.high >= self.medium >= self.low:
            raise ValueError(f"T must be high >= medium >= low, not {self.high}, {self.medium}, {self.low}")

    def topology(self, landing: Landing) -> float:
        """T: what is not known is worth no more than what crosses sockets."""
        return (self.high, self.medium, self.low, self.low)[landing]

    def score(self, priority_sum: int, landing: Landing) -> float:
        """S of one preemptor."""
        return self.score_of(priority_sum, self.topology(landing), 1)

    def score_of(self, priority_sum: int, topology: float, pods: int) -> float:
        """S of several, with the mean of T over them; ``topology``: its sum. A sum of priorities below 1 counts as 1.

        The paper divides by it.
        """
        return self.alpha / max(priority_sum, 1) + (1 - self.alpha) * topology / pods


class VictimPod(msgspec.Struct, frozen=True, gc=False):
    """A pod that may be evicted: ``requests`` is what it gives back to its node (one of ``pods`` included)."""

    key: HolderKey
    priority: int
    requests: Amounts
    placement: NumaPlacement | None = None

    @property
    def weight(self) -> int:
        """Its part of the sum of priorities."""
        return max(self.priority, 0)


class NodeRoom(msgspec.Struct, frozen=True, gc=False):
    """A node: ``free`` now by resource, its inside where known, and those on it that may be evicted."""

    node: str
    free: Amounts
    victims: tuple[VictimPod, ...] = ()
    layout: Layout | None = None
    state: State | None = None
    device_ids: dict[str, tuple[str, ...]] = {}


class Preemptor(msgspec.Struct, frozen=True):
    """Who wants in: one pod. ``above``: only victims of lower priority than this may be taken.

    ``shape`` None: the pod asks for nothing that a kubelet aligns.
    """

    requests: Amounts
    above: int
    shape: PodShape | None = None
    qos: TopologyQos = TopologyQos.GUARANTEED


class Cost(NamedTuple):
    """What a set of victims costs: the highest priority, the sum of priorities, and how many they are."""

    highest: int = NOBODY
    total: int = 0
    size: int = 0


class ChoiceRules(msgspec.Struct, frozen=True):
    """What is least, and how it is scored.

    ``every_subset``: one pod's victims are those of the highest S of all sets of all nodes, to be compared with; no
    setting and no queue asks for it.
    """

    strategy: Strategy = Strategy.LEAST_PRIORITY
    scoring: Scoring = msgspec.field(default_factory=Scoring)
    every_subset: bool = False

    @property
    def by_count(self) -> bool:
        """Whether the number of victims comes first."""
        return self.strategy is Strategy.INCREMENTAL_MINIMAL

    def key(self, cost: Cost, landing: Landing, freed: int) -> Key:
        """What is compared, less first."""
        head = float(cost.size > 0), float(landing is Landing.UNKNOWN)
        if self.by_count:
            # Equation 1 rates victims: without any, only the landing counts.
            score = self.scoring.score(cost.total, landing) if cost.size else self.scoring.topology(landing)
            return (*head, cost.size, -score, freed)
        return (*head, cost.highest, cost.total, cost.size, landing, freed)


@dataclass(frozen=True)
class Choice:
    """Evict these victims of a node, and the preemptor gets in.

    ``score`` is S; ``freed``: units of devices given up in all; ``devices``: (resource, mask) that it will get.
    """

    node: str
    victims: tuple[VictimPod, ...]
    cost: Cost
    landing: Landing
    freed: int
    score: float
    devices: tuple[tuple[str, int], ...] = field(default=(), compare=False)
    zones: int = field(default=0, compare=False)
