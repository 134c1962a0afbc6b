"""What was let go and does not run, and what holds room without a pod. Pure: what was read in, findings out."""

from collections.abc import Iterator, Sequence

import msgspec

from cli.doctor.findings import Finding, warning
from cli.queues.rendering import duration
from kube.objects import Pod, condition, controller_of, key
from kube.told_events import ToldEvent
from kube.workloads import WorkloadObject
from ungater.model import conditions as names
from ungater.model.conditions import moment
from ungater.model.pod_slots import finished
from ungater.model.unscheduled import SILENCE
from ungater.model.workload_entry import WorkloadEntry
from ungater.model.workload_spec import belongs
from ungater.model.workload_status import observed_of
from ungater.reconcile import let_go

USUAL = 60.0  # seconds in which pods are bound and started, and made
LEFT_OUT = "NodeLeftOut"  # reason of the events on nodes
RECENT = 900.0  # seconds: a node may be left out for ten minutes


class HangingView(msgspec.Struct, frozen=True):
    """What is looked at. ``now``: seconds since the epoch; ``events``: what was told of nodes and jobs."""

    entries: Sequence[WorkloadEntry]
    workloads: Sequence[WorkloadObject]
    events: Sequence[ToldEvent]
    now: float


def findings(held: HangingView) -> Iterator[Finding]:
    """All findings about pods after their gate, and about room that nobody uses."""
    now = held.now
    for entry in sorted(held.entries, key=lambda entry: entry.key):
        yield from _unscheduled(entry, now)
        pods = [
            entry.pods[uid]
            for uid, one in entry.unstarted.items()
            # Pulling an image takes a while on a healthy node too.
            if one.words and now - _bound_at(entry.pods[uid], now) >= USUAL
        ]
        pods.sort(key=lambda pod: pod.metadata.name)
        if pods:
            oldest = now - min(_bound_at(pod, now) for pod in pods)
            text = f"{let_go.message_of_unstarted(entry, pods)} (for {duration(int(oldest))})"
            yield warning(about(entry), text, f"kubectl describe pod -n {entry.job.namespace} {pods[0].metadata.name}")
        yield from _without_pods(entry, now)
    yield from _of_nobody(held)
    # Nodes on which pod after pod did not run.
    newest: dict[str, ToldEvent] = {}
    for one in sorted(held.events, key=lambda one: one.last):
        # Sorted by time above, so the newest event of a node overwrites the others.
        if one.reason == LEFT_OUT and held.now - one.last < RECENT:
            newest[one.regarding.name] = one
    for name, one in sorted(newest.items()):
        told = f"{one.note} ({duration(int(held.now - one.last))} ago)"
        yield warning(f"node {name}", told, f"kubectl cordon {name}, and mend what the last pod was refused for")


def _unscheduled(entry: WorkloadEntry, now: float) -> Iterator[Finding]:
    refused: dict[str, Pod] = {}
    silent: list[Pod] = []
    for uid, one in entry.unscheduled.items():
        pod = entry.pods[uid]
        if one.refused_at is not None and _since(pod, now) >= USUAL:
            refused[uid] = pod
        elif one.refused_at is None and now - (moment(pod.metadata.creation_timestamp) or now) >= SILENCE:
            # No scheduler says anything of it: it may name one that does not run.
            silent.append(pod)
    if refused:
        oldest = max(_since(pod, now) for pod in refused.values())
        text = f"{let_go.message_of(entry, refused)} (for {duration(int(oldest))})"
        # Nothing makes a bare pod again, so it never gets another place.
        bare = [pod.metadata.name for pod in refused.values() if controller_of(pod.metadata) is None]
        if bare:
            mend = f"kubectl delete pod -n {entry.job.namespace} {' '.join(sorted(bare)[:4])}"
        else:
            mend = f"topogate explain {entry.job.kind.lower()}/{entry.job.name} -n {entry.job.namespace}"
        yield warning(about(entry), text, mend)
    if silent:
        silent.sort(key=lambda pod: pod.metadata.name)
        made = min(moment(pod.metadata.creation_timestamp) or now for pod in silent)
        text = f"{let_go.message_of_ignored(silent)} (made {duration(int(now - made))} ago)"
        yield warning(about(entry), text, f"kubectl describe pod -n {entry.job.namespace} {silent[0].metadata.name}")


def _without_pods(entry: WorkloadEntry, now: float) -> Iterator[Finding]:
    """A workload that was admitted and has no pods."""
    observed, owner = entry.observed, entry.job
    if (
        entry.admission is None
        or observed is None
        or owner.over
        or any(not finished(pod) for pod in entry.pods.values())
    ):
        return
    # A workload may hold its quota for a while before it is admitted.
    since = names.true_since(observed.conditions, names.ADMITTED) or names.true_since(
        observed.conditions, names.QUOTA_RESERVED
    )
    if since is None or now - since < USUAL:
        return
    text = f"it holds room for {entry.admission.count} pods and has none (for {duration(int(now - since))})"
    waits = condition(observed.conditions, names.ADMITTED)
    if waits is not None and waits.status != "True":
        text += f"; {waits.message}"
    yield warning(about(entry), text, f"kubectl describe {owner.kind.lower()} -n {owner.namespace} {owner.name}")


def _of_nobody(held: HangingView) -> Iterator[Finding]:
    """Workloads that hold room and whose owner is not there."""
    owners = {entry.job.workload_key: entry.job for entry in held.entries}
    for workload in sorted(held.workloads, key=key):
        owner, observed = owners.get(key(workload)), observed_of(workload)
        # A job of the same name that was made later is another owner, and leaves this Workload to nobody.
        if observed.admission is None or (owner is not None and belongs(workload, owner)):
            continue
        over = names.true_since(observed.conditions, names.FINISHED)
        made = moment(workload.metadata.creation_timestamp) or held.now
        if over is not None or held.now - made < USUAL:
            continue
        namespace, name = workload.metadata.namespace, workload.metadata.name
        count, since = observed.admission.count, duration(int(held.now - made))
        text = f"it holds room for {count} pods, and its owner is not there (made {since} ago)"
        yield warning(
            f"workload {namespace}/{name}", text, f"kubectl delete workloads.topogate.dev -n {namespace} {name}"
        )


def about(entry: WorkloadEntry) -> str:
    """Whose a finding is: ``Job team-a/train``."""
    return f"{entry.job.kind} {entry.job.namespace}/{entry.job.name}"


def _since(pod: Pod, now: float) -> float:
    """For how many seconds kube-scheduler refuses a pod."""
    said = condition(pod.status.conditions, "PodScheduled")
    return now - ((moment(said.last_transition_time) if said is not None else None) or now)


def _bound_at(pod: Pod, now: float) -> float:
    said = condition(pod.status.conditions, "PodScheduled")
    at = moment(said.last_transition_time) if said is not None else None
    return at or moment(pod.metadata.creation_timestamp) or now
