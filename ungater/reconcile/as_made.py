"""Pods as they were made, compared with what their workload was, or will be, decided for.

Plain functions of what was seen, like `ungater.reconcile.reconcile`.

Rules
- A pod is made from a template, and then changed: by admission plugins that nobody here knows, by webhooks, by whoever
  may narrow its node selector while it is gated. What is decided and what runs would be two things. So where all gated
  pods of a pod set are made otherwise than the job's view says, they are what counts (`TakePods`): for what its queue
  is asked for, for where they may go, and for whether the slots that it has still do.
- Where they differ from each other too, none is like the others, and nobody knows what is to come: those that are not
  what was decided stay gated. A webhook may have changed its mind amid a gang, and nobody tells which of them are like
  those to come. So once they had time to become alike, those of Jobs are deleted, and made again: all gated ones of
  their pod set, or, where others run, only those that differ. The next time takes twice as long. That is no failure of
  a Job, and ends nothing that runs. A LeaderWorkerSet would make the whole group again, with what runs of it.
- Pods that were let go are not looked at: they run as they are. Nor are pods that JobSet changes for exclusive
  placement, which is foreseen (`kube.pods.exclusive`).
- What counts as a difference is `kube.pods.placement_fields`. Comparing it is slow; pods of one template are equal in
  all that is read of them, which is compared first.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from engine.reasons import Reason
from kube.objects import Pod, PodSpec, controller_of
from kube.pods.placement_fields import gang_fields, placement_fields
from ungater.model.actions import (
    Action,
    Delete,
    Differ,
    RequeueAfter,
    TakePods,
)
from ungater.model.job_view import PodSetView
from ungater.model.pod_slots import finished, is_gated
from ungater.model.workload_entry import Differing, WorkloadEntry
from ungater.reconcile import granted
from ungater.reconcile.context import ReconcileContext

FIRST_PATIENCE: Final = 10.0  # seconds for which pods that differ are left as they are
LONGEST_PATIENCE: Final = 600.0
FEW = 8  # kinds of pods that are told apart; whoever makes pods could make each otherwise


class Comparison(msgspec.Struct, frozen=True):
    """``taken``: what pod sets' pods turned out to be; ``mixed``: uids of pods that others of their pod set are not.

    ``kinds``: by uid, a number that pods of one pod set share which are equal in all that is read of their specs.
    """

    taken: TakePods | None = None
    mixed: frozenset[str] = frozenset()
    kinds: Mapping[str, int] = msgspec.field(default_factory=dict)


NOTHING = Comparison()


def compared(entry: WorkloadEntry, rules: ReconcileContext) -> Comparison:
    """The gated pods of a job whose owner says what they are made of."""
    owner, gate = entry.job, rules.keys.gate
    if not (owner.suspendable or owner.foretold) or not any(is_gated(pod, gate) for pod in entry.pods.values()):
        return NOTHING
    specs: dict[str, PodSpec] = {}
    mixed: set[str] = set()
    numbers: dict[str, int] = {}
    undecided = False
    for pod_set in owner.pod_sets:
        added = pod_set.added
        # Others change these pods in ways that are counted already.
        foreseen = added.affinity or added.anti_affinity or added.node_selector or added.tolerations
        kinds = [] if foreseen else _kinds(_gated(entry, pod_set, gate), own_volumes=not owner.suspendable)
        for at, kind in enumerate(kinds[:FEW]):
            numbers |= dict.fromkeys(kind.uids, at)
        if not kinds:
            continue
        template = pod_set.template.spec if owner.suspendable else _without_volumes(pod_set.template.spec)
        both = template, kinds[0].spec, rules.default_class()
        if len(kinds) == 1 and entry.alike.get(pod_set.name) == both:
            continue
        decided = placement_fields(template, rules.default_class())
        fields = [placement_fields(kind.spec, rules.default_class()) for kind in kinds[:FEW]]
        # The kind at FEW is the rest of all pods, which may differ among
        # themselves: it never counts as like the template.
        others = [at for at in range(len(kinds)) if at == FEW or fields[at] != decided]
        if len(others) == len(kinds) <= FEW and all(each == fields[0] for each in fields):
            specs[pod_set.name] = kinds[0].spec
            undecided = undecided or gang_fields(kinds[0].spec) != gang_fields(template)
        elif len(kinds) == 1:  # a look at each pod of a gang finds the same, and this took a third of it
            entry.remember_alike(pod_set.name, both)
        else:
            mixed.update(uid for at in others for uid in kinds[at].uids)
    taken = TakePods(specs, undecided=undecided and entry.admission is not None) if specs else None
    return Comparison(taken, frozenset(mixed), numbers)


def _gated(entry: WorkloadEntry, pod_set: PodSetView, gate: str) -> Iterator[Pod]:
    expectations = entry.expectations
    for pod in entry.pods_of_pod_set(pod_set):
        waits = is_gated(pod, gate) and pod.metadata.uid not in expectations
        if waits and pod.metadata.deletion_timestamp is None and not finished(pod):
            yield pod


class _Kind(msgspec.Struct, frozen=True):
    """Pods that are equal in all that is read of them."""

    spec: PodSpec
    uids: list[str]


def _without_volumes(spec: PodSpec) -> PodSpec:
    return replace(spec, volumes=None)


def _kinds(pods: Iterator[Pod], *, own_volumes: bool) -> list[_Kind]:
    """Pods by what is read of them. Those of no kind of the first few are in one more, whatever they are.

    ``own_volumes``: each has volumes of its own, which do not count.
    """
    found: list[_Kind] = []
    for pod in pods:
        spec = _without_volumes(pod.spec) if own_volumes else pod.spec
        kind = next((one for one in found[:FEW] if one.spec == spec), None)
        if kind is None and len(found) <= FEW:
            found.append(kind := _Kind(spec, []))
        (kind or found[-1]).uids.append(pod.metadata.uid)
    return found


def made_again(entry: WorkloadEntry, mixed: frozenset[str], rules: ReconcileContext, now: float) -> Iterator[Action]:
    """What becomes of pods that differ from others of their pod set (``mixed``: their uids)."""
    known = entry.differing
    left = known.since + _patience(known) - now
    if not mixed or not entry.job.suspendable:
        return
    # Another set of pods: the time in which they may become alike begins again.
    if known.uids != mixed:
        yield Differ(mixed)
        yield RequeueAfter(_patience(known))
    elif left > 0:
        yield RequeueAfter(left)
    else:
        text = (
            f"the pod differs from other pods of {entry.job.called} in what decides where pods may run: it is deleted, "
            "so that it is created again like the others"
        )
        gate, deleting = rules.keys.gate, entry.deleting
        none_runs = granted.none_runs(entry, gate)
        pods: list[Pod] = []
        for pod_set in entry.job.pod_sets:
            gated = sorted(_gated(entry, pod_set, gate), key=lambda pod: pod.metadata.name)
            if any(pod.metadata.uid in mixed for pod in gated):
                pods += (
                    pod
                    for pod in gated
                    if (none_runs or pod.metadata.uid in mixed)
                    # Without an owner, nobody would make it again.
                    and controller_of(pod.metadata) is not None
                    and deleting.get(pod.metadata.uid, 0.0) <= now
                )
        yield from (Delete(pod, Reason.PODS_CHANGE, text) for pod in pods)
        if pods:
            yield Differ(mixed, again=True)


def _patience(known: Differing) -> float:
    return min(LONGEST_PATIENCE, FIRST_PATIENCE * 2.0 ** min(known.again, 16))


def mixed_message(entry: WorkloadEntry, uids: Collection[str]) -> str:
    """Why pods wait that are not made like others of their pod set, or not like what was decided."""
    names = sorted(pod.metadata.name for uid, pod in entry.pods.items() if uid in uids)
    more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    again = (
        "Pods that stay different are deleted after a while, and their owner creates them again"
        if entry.job.suspendable
        else "Delete the pods that are to be created again"
    )
    return (
        f"pod {names[0]}{more} differs from other pods of {entry.job.called} in what decides where pods may run: look "
        f"for webhooks and admission policies that change pods. {again}"
    )
