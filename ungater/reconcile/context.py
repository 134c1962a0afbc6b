"""What `ungater.reconcile` reads beside the entry of a workload: what holds for all jobs."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from crds.constants import Keys
from crds.levels import LevelNames
from engine.claims.asks import DeviceAsk
from engine.model import Amounts
from kube.objects import Pod, PodClaimStatus, PodSpec
from ungater.model.job_view import PodSetView
from ungater.model.life import LifeRules
from ungater.model.pod_slots import PodSetSlots, Tally, tally
from ungater.model.workload_entry import WorkloadEntry


class Losing(msgspec.Struct, frozen=True):
    """The domains in which a workload loses its slices, and why."""

    domains: tuple[tuple[str, ...], ...]
    message: str


class PodChoice(msgspec.Struct, frozen=True):
    """The slots that a gated pod may go to, by where its volumes reach; ``why`` it may not go at all, if so."""

    slots: frozenset[int]
    why: str = ""


class MissingPods(msgspec.Struct, frozen=True):
    """So many seconds have pods to come for which something is held: those that never were there, and others."""

    # Set by missingPodsTimeoutSeconds and missingPodsRecoveryTimeoutSeconds (`ungater.cache.rules`).
    never: float = 60.0
    again: float = 900.0


class ReconcileContext(msgspec.Struct, frozen=True):
    """What holds for all jobs: our keys, each flavor's levels by its name, and which places are lost.

    ``lost``: those of some slices where no pod of the pod set can start now. ``dead``: whether nobody ends pods on a
    node, as it is gone or not ready. ``missing``: since when there is no such node, on the monotonic clock; None where
    there is one. ``avoided``: the nodes where kubelets or kube-scheduler refused pods like those of the pod set, for
    as long as they are left out. ``patience``: seconds for which kube-scheduler may refuse a pod; None: for ever.
    """

    keys: Keys
    flavors: Mapping[str, tuple[str, ...]]
    level_names: LevelNames  # what flavors call their levels
    lost: Callable[[WorkloadEntry, PodSetView, PodSetSlots, Sequence[int]], Collection[int]]
    dead: Callable[[str], bool]
    missing: Callable[[str], float | None]
    avoided: Callable[[WorkloadEntry, PodSetView, float], Collection[str]]
    patience: float | None
    life: LifeRules
    missing_pods: MissingPods
    default_class: Callable[[], str]  # the PriorityClass of pods that name none
    require_queue: bool  # what asks for a topology without a queue is not placed
    nominates: bool  # kube-scheduler keeps the room of pods that have a slot and wait behind the gate
    planned: Callable[[WorkloadEntry], Mapping[str, PodSetSlots]]  # by pod set: what it gets once its victims are gone
    # Seconds for which those of a namespace wait for their pods, as pods of others there did not come.
    doubted: Callable[[str, float], float]
    no_queue: Callable[[WorkloadEntry], str | None]  # what is not there of the queue that it names
    find_stop: Callable[[WorkloadEntry], str | None]  # which queue is stopped by which it holds something
    checks: Callable[[WorkloadEntry], Collection[str]]  # the admission checks that it needs
    losing: Callable[[WorkloadEntry], Losing | None]  # slices that are to make room for somebody
    outsiders: Callable[[WorkloadEntry], tuple[tuple[Pod, str], ...]]  # pods that are to make room for it
    unkept: Callable[[WorkloadEntry], Mapping[str, str]]  # by uid: what of a pod's wishes is not so
    uncounted: Callable[[WorkloadEntry], str | None]  # what its pods ask for that is not counted
    # What pods of a namespace ask for by claims that are made of templates; a text says why that is not counted.
    devices: Callable[[str, PodSpec, Iterable[PodClaimStatus] | None], DeviceAsk | str | None]
    # What a pod takes of what its workload was granted; of its node it takes the amounts that are given.
    charged: Callable[[WorkloadEntry, Amounts, PodSpec, Iterable[PodClaimStatus] | None], Amounts]
    asked_by: Callable[[Pod], Amounts]  # what a pod that runs takes of its node, as far as that is charged
    unready: Callable[[WorkloadEntry], str | None]  # why it waits for its volumes
    in_group: Callable[[str], Iterable[Pod]]  # all pods of a native PodGroup, by its key
    grouped: Callable[[WorkloadEntry], str | None]  # who else waits in its native PodGroup
    # By uid of those gated pods whose volumes do not let them go to all of the slots: to which.
    choices: Callable[[WorkloadEntry, PodSetSlots, Collection[Pod]], Mapping[str, PodChoice]]

    def tally_pods(  # noqa: PLR0917
        self,
        entry: WorkloadEntry,
        pod_set: PodSetView,
        slots: PodSetSlots,
        pods: Iterable[Pod],
        now: float,
        first: Collection[str] | None = None,
    ) -> Tally:
        """What these pods of a pod set hold of its slots. ``now`` and ``first``: as in `tally`."""
        return tally(
            slots,
            pods,
            entry.expectations,
            gate=self.keys.gate,
            mark=self.keys.workload,
            workload=entry.job.workload,
            now=now,
            rank=pod_set.rank_of_pod,
            dead=self.dead,
            first=first,
            adopting=entry.adopting,
        )
