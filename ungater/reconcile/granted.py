"""What was granted to each pod of a workload, compared with what its pods ask for and which queue they name.

Plain functions of what was seen, like `ungater.reconcile.reconcile`.

Rules
- Quota and room are given for so many pods that each take so much. A pod goes only if it takes no more, and names no
  other queue: whoever makes pods could else have admitted what is small, and run what is large. For a pod that names
  another queue nothing is held, so its slot is given back, and none is asked for. Once none of the pods runs that were
  admitted in another queue, the workload waits in the one that they name.
- Where pods ask for more, as after a rolling update, more is asked for, for all pods of the pod set alike; they go once
  that is admitted. Where all of them ask for less, the difference is given back.
- Where it is known what pods will ask for that are to come, those before them wait too: of a LeaderWorkerSet's group
  none goes to a place where the others do not fit. A workload of which none runs, and that finds neither room nor quota
  for more beside what it has, gives that back and waits for all of it: two that each keep a part would wait for ever.
- A pod with resource claims goes if its workload was admitted with the same. Nothing was granted of devices that are
  not counted (`ungater.cache.claims.device_claims`): a pod with other claims stays gated, and so do those before it
  where it is known that it is to come. A workload of which none runs gives its place back, and waits; a Job whose
  template has no claims would be admitted again, so that one keeps its place unless its pods are made otherwise.
- Devices of claims are compared as quota counts them too (`ReconcileContext.charged`). Where a queue pays, a pod goes
  once its claims are made (they are while it is gated), so that it is known what they ask for.
- Of pods that a Job makes, its template tells what they take, with all that the API server is known to add. Where they
  are made otherwise all the same, they count (`ungater.reconcile.as_made`).
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from crds.constants import Keys
from engine.claims.asks import DeviceAsk
from engine.claims.read.asks import resources_of, same_devices
from engine.model import Amounts
from engine.quantity import format_quantity
from engine.reasons import Reason
from kube.objects import Pod, PodClaimStatus, PodSpec
from kube.pods.device_claims import claims_in_words, made_of_templates
from kube.pods.requests import pod_requests
from queueing.model import at_least, exceeds
from ungater.model.conditions import WantedCondition, nothing_held
from ungater.model.job_view import JobView, PodSetView
from ungater.model.pod_slots import finished, is_gated
from ungater.model.workload_entry import WorkloadEntry
from ungater.reconcile.context import ReconcileContext


class Barred(msgspec.Struct, frozen=True):
    """A pod that is not let go, though there is a place for it: it is not what was admitted.

    ``asks``: what it asks for, where that is more, or pods of ``pod_set`` that are to come after it; {} where it names
    another queue, or has ``claims`` to devices, in words, or those have that are to come.
    """

    pod: Pod
    pod_set: str
    asks: Amounts
    claims: str = ""

    @classmethod
    def find_bar(
        cls, entry: WorkloadEntry, pod_set: str, pod: Pod, rules: ReconcileContext, more: Mapping[str, Amounts]
    ) -> "Barred | None":
        """None for a pod that may go, of those that name no other queue. ``more``: `to_come`."""
        made = pod.status.resource_claim_statuses
        if claims := _uncounted_claims(entry, pod_set, pod.spec, rules, made):
            return cls(pod, pod_set, {}, claims)
        for one in entry.job.pod_sets if entry.job.foretold else ():
            if claims := _uncounted_claims(entry, one.name, one.template.spec, rules):
                return cls(pod, one.name, {}, claims)
        granted = entry.granted(pod_set)
        asks = rules.charged(entry, pod_requests(pod.spec), pod.spec, made) if granted is not None else {}
        if granted is not None and exceeds(asks, granted):
            return cls(pod, pod_set, asks)
        return next((cls(pod, name, asks) for name, asks in more.items()), None)


def of_other_queues(entry: WorkloadEntry, keys: Keys, now: float) -> list[Barred]:
    """The pods that wait behind the gate, and name another queue than the one that their workload was admitted in."""
    observed = entry.observed
    if entry.admission is None or observed is None or entry.job.suspendable:
        return []
    # A pod without the label names no queue, and goes with its workload.
    same = {None, "", observed.queue}
    found: list[Barred] = []
    for pod in entry.pods.values():
        if (
            (pod.metadata.labels or {}).get(keys.queue_name) in same
            or not is_gated(pod, keys.gate)
            or finished(pod)
            or pod.metadata.deletion_timestamp is not None
        ):
            continue
        sent, slots = entry.expectations.get(pod.metadata.uid), entry.slots_of(pod)
        # No patch may have let it go to a slot that there is.
        stays = sent is None or (
            not sent.gone and slots is not None and slots.index(sent.values) is None and sent.deadline <= now
        )
        if stays and (name := entry.pod_set_of(pod)):
            found.append(Barred(pod, name, {}))
    return found


def granted_devices(entry: WorkloadEntry, pod_set: str) -> DeviceAsk | None:
    """The claims that each pod of a pod set was admitted with; None for none."""
    parts = entry.grant.assignments if entry.grant is not None else ()
    return next((one.devices for one in parts if one.pod_set == pod_set), None)


def _uncounted_claims(
    entry: WorkloadEntry,
    pod_set: str,
    spec: PodSpec,
    rules: ReconcileContext,
    made: Iterable[PodClaimStatus] | None = None,
) -> str:
    """The resource claims of such pods in words, unless they were admitted with what these ask for; "" for none.

    An extended resource that was admitted by amounts alone has its place where plugins give it, whatever classes say.
    """
    claims, granted = claims_in_words(spec), granted_devices(entry, pod_set)
    if granted is None:
        return claims
    found = rules.devices(entry.job.namespace, spec, made)
    if isinstance(found, DeviceAsk) and same_devices(found, granted):
        return ""
    if claims:
        return f"{claims} ({found})" if isinstance(found, str) else claims
    asks, either = pod_requests(spec), resources_of(granted)
    if isinstance(found, DeviceAsk):
        either |= resources_of(found)
    return next((f"a request for {one}" for one in sorted(either) if asks.get(one, 0) > 0), "")


def awaits_claims(entry: WorkloadEntry, pod: Pod) -> bool:
    """Whether claims of a pod are still to be made of which a queue pays: their templates may be made again by then."""
    if entry.admission is None or not entry.admission.queue:
        return False
    made = {one.name for one in pod.status.resource_claim_statuses or ()}
    return not made_of_templates(pod.spec) <= made


def to_come(entry: WorkloadEntry, rules: ReconcileContext) -> dict[str, Amounts]:
    """What pods will ask for that are to come, by pod set where that is more than was granted to each."""
    found: dict[str, Amounts] = {}
    for pod_set in entry.job.pod_sets if entry.job.foretold else ():
        granted, spec = entry.granted(pod_set.name), pod_set.template.spec
        asks = rules.charged(entry, pod_requests(spec), spec, None)
        if granted is not None and exceeds(asks, granted):
            found[pod_set.name] = asks
    return found


def asked(entry: WorkloadEntry, barred: Sequence[Barred], rules: ReconcileContext) -> dict[str, Amounts]:
    """By pod set, what is to be granted to each of its pods so that those that ask for more may go."""
    found: dict[str, Amounts] = {}
    wanted = [(one.pod_set, one.asks) for one in barred if one.asks]
    for name, asks in (*wanted, *(to_come(entry, rules).items() if wanted else ())):
        # Never less than was granted: pods of the same pod set may run by that.
        found[name] = at_least(found.get(name) or entry.granted(name) or {}, asks)
    return found


def anew(entry: WorkloadEntry, wanted: Mapping[str, Amounts], gate: str) -> tuple[WantedCondition, ...]:
    """What is said of a workload that waits anew, as what its pods ask for is not to be had beside what it holds.

    () where that was not tried yet, or lacks something else than room and quota, or where some of its pods run still.
    """
    refused = entry.refused
    tried = wanted and entry.asked == wanted and refused is not None and refused.reason.traits.short is not None
    if not tried or refused is None or not none_runs(entry, gate):
        return ()
    message = f"all its pods ask for more than was admitted, and it cannot get more where it is: {refused.message}"
    return nothing_held(Reason.ASKS_FOR_MORE, message)


def none_runs(entry: WorkloadEntry, gate: str) -> bool:
    """Whether none of its pods was let go that has not finished, as far as is known."""
    # Seen behind their gates, they may run.
    sent = {uid for uid, expectation in entry.expectations.items() if not expectation.gone}
    return all((is_gated(pod, gate) and pod.metadata.uid not in sent) or finished(pod) for pod in entry.pods.values())


def requeued_conditions(entry: WorkloadEntry, barred: Sequence[Barred], gate: str) -> tuple[WantedCondition, ...]:
    """What is said of a workload that waits anew in the queue that its pods name; () where some of them run still.

    Only where it would wait for something else then: what is admitted in the same queue again is barred again.
    """
    first, observed = next((one for one in barred if not one.asks and not one.claims), None), entry.observed
    other = observed is not None and (entry.job.queue != observed.queue or entry.job.wrong is not None)
    if first is None or not other or not none_runs(entry, gate):
        return ()
    message = f"pod {first.pod.metadata.name} and all its other pods name another queue than the one that admitted it"
    return nothing_held(Reason.OTHER_QUEUE, message)


def given_back(entry: WorkloadEntry, barred: Sequence[Barred], gate: str) -> tuple[WantedCondition, ...]:
    """What is said of a workload that waits anew, as what its pods ask for now is not what it was admitted for.

    () where it goes on: some of them run still, or it would be admitted again as it was.
    """
    first = next((one for one in barred if one.claims), None)
    made = first is not None and any(one.as_made for one in entry.job.pod_sets if one.name == first.pod_set)
    # A job whose pods are what its template says would be admitted again as it was.
    if first is None or (entry.job.suspendable and not made) or not none_runs(entry, gate):
        return requeued_conditions(entry, barred, gate)
    message = f"pod {first.pod.metadata.name} and all its other pods wait: {_uncounted(entry, first)}"
    return nothing_held(Reason.RESOURCE_CLAIMS_NOT_COUNTED, message)


def _uncounted(entry: WorkloadEntry, bar: Barred) -> str:
    whose = "it has" if entry.pod_set_of(bar.pod) == bar.pod_set else f"pods of {bar.pod_set} that follow it have"
    return f"{whose} {bar.claims}, for which {entry.job.called} was given no devices"


def less(entry: WorkloadEntry, pod_set: PodSetView, rules: ReconcileContext) -> Amounts | None:
    """What each pod of a pod set takes, where all of them ask for less than was granted; else None."""
    granted, spec = entry.granted(pod_set.name), pod_set.template.spec
    if granted is None or entry.job.suspendable:
        return None
    # The template first: where it asks for no less, the usual case, no pod is looked at.
    if not exceeds(granted, rules.charged(entry, pod_requests(spec), spec, None)):
        return None
    found: Amounts = {}
    for pod in (
        *entry.pods_of_pod_set(pod_set),
        *entry.left_of(pod_set.name),
    ):  # those that left run on by what was granted
        if not finished(pod):
            requests, made = rules.asked_by(pod), pod.status.resource_claim_statuses
            if isinstance(rules.devices(entry.job.namespace, pod.spec, made), str):
                return None  # what its claims ask for is not known now
            found = at_least(found, rules.charged(entry, requests, pod.spec, made))
    return found if found and exceeds(granted, found) and not exceeds(found, granted) else None


def as_admitted(entry: WorkloadEntry) -> JobView:
    """The job as its Workload is to say it, where that was deleted and is made anew.

    What it holds it was given in the queue that its Workload named, whatever its pods name by now: else pods of another
    queue would go, by quota of this one.
    """
    return entry.job if entry.admission is None else replace(entry.job, queue=entry.queue_before)


def message_of(entry: WorkloadEntry, barred: Sequence[Barred]) -> tuple[Reason, str] | None:
    """Why pods that are not what was admitted stay gated; None where there are none."""
    first = min(barred, key=lambda one: (not one.claims, not one.asks, one.pod.metadata.name), default=None)
    if first is None:
        return None
    job, others = entry.job.called, f" (and {len(barred) - 1} more)" if len(barred) > 1 else ""
    pod = f"pod {first.pod.metadata.name}{others}"
    if first.claims:
        return Reason.RESOURCE_CLAIMS_NOT_COUNTED, f"{pod} stays gated: {_uncounted(entry, first)}"
    if not first.asks:
        queue = f"queue {entry.observed.queue}" if entry.observed is not None and entry.observed.queue else "no queue"
        return Reason.OTHER_QUEUE, (
            f"{pod} names another queue than {job}, which was admitted in {queue}: it stays gated, and nothing is held "
            f"for it, until no pod of {job} runs"
        )
    granted = entry.granted(first.pod_set) or {}
    over = {name: amount for name, amount in sorted(first.asks.items()) if amount > granted.get(name, 0)}
    more = ", ".join(f"{name} {format_quantity(name, amount)}" for name, amount in over.items())
    had = ", ".join(f"{name} {format_quantity(name, granted.get(name, 0))}" for name in over)
    why = f": {entry.refused.message}" if entry.refused is not None else ""
    asks = f"{pod} asks"
    if entry.pod_set_of(first.pod) != first.pod_set:
        asks = f"{pod} waits, as pods of {first.pod_set} that follow it ask"
    return Reason.ASKS_FOR_MORE, (
        f"{asks} for {more}, and {job} was admitted with {had} for each: it starts once more is admitted{why}"
    )
