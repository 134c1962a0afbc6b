"""Jobs that ask for Topogate and never got to it: they have no gate, or their Workload cannot be made or changed.

Pure: what was read in, findings out. What jobs have in common makes one finding.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from cli.doctor.findings import Finding, error, warning
from cli.doctor.hanging import RECENT, USUAL, HangingView, about
from cli.output import some
from cli.queues.rendering import duration
from crds.constants import Keys
from engine.reasons import Reason
from kube.told_events import ToldEvent
from ungater.executor import messages
from ungater.model.conditions import moment
from ungater.model.pod_slots import finished
from ungater.model.workload_entry import WorkloadEntry
from ungater.reconcile.reconcile import left_alone
from ungater.writers.events import job_reference

REFUSED = "403 Forbidden"
NOT_MADE = messages.not_created("")


def findings(held: HangingView, keys: Keys, account: str, *, led: bool) -> Iterator[Finding]:
    """``account``: who the controller is to be; ``led``: whether one is there, which should have made the Workloads."""
    alone: dict[tuple[str, Reason], list[WorkloadEntry]] = defaultdict(list)
    refused = defaultdict[str, list[tuple[ToldEvent, WorkloadEntry]]](list)
    silent: list[WorkloadEntry] = []
    events = {
        one.regarding.uid: one
        for one in sorted(held.events, key=lambda one: one.last)
        if one.ours and one.reason == Reason.WRITE_FAILED and held.now - one.last < RECENT
    }
    for entry in sorted(held.entries, key=lambda one: one.key):
        # A job that is done needs no Workload any more.
        if entry.job.over or (entry.pods and all(map(finished, entry.pods.values()))):
            continue
        told = events.get(job_reference(entry).uid)
        if (why := left_alone(entry, keys)) is not None:
            alone[entry.job.namespace, why.reason].append(entry)
        elif told is not None and (entry.observed is None or not told.note.startswith(NOT_MADE)):
            # A failed creation counts no more once the Workload is there; a failed change does.
            refused[told.note].append((told, entry))
        elif entry.observed is None and _age(entry, held.now) >= USUAL:
            # No write failed either, so none was tried.
            silent.append(entry)
    for entries in alone.values():
        # Jobs that are ours to place by their request, or by their gate, and not by the other.
        first, cause = entries[0], left_alone(entries[0], keys)
        said = f"{cause.reason}: {cause.message}" if cause is not None else ""
        kind, where, name = first.job.kind.lower(), first.job.namespace, first.job.name
        yield warning(_names(entries), said, f"kubectl delete {kind} -n {where} {name}, and create it again")
    for note, ones in refused.items():
        since = duration(int(held.now - max(told.last for told, _ in ones)))
        mend = _command_to_look(ones[0][1])
        if REFUSED in note:
            mend = (
                f"is `topogate ungater` running as {account}? (docs/install.md, Components beside the cluster); {mend}"
            )
        yield error(_names([entry for _, entry in ones]), f"{Reason.WRITE_FAILED}: {note} ({since} ago)", mend)
    if silent and led:
        age = duration(int(max(_age(entry, held.now) for entry in silent)))
        text = f"the controller runs and has made no Workload of it (for {age}), so its pods stay gated"
        yield error(_names(silent), text, f"read the log of `topogate ungater`; {_command_to_look(silent[0])}")


def _names(entries: Sequence[WorkloadEntry]) -> str:
    return some([about(entry) for entry in entries])


def _command_to_look(entry: WorkloadEntry) -> str:
    return f"kubectl describe {entry.job.kind.lower()} -n {entry.job.namespace} {entry.job.name}"


def _age(entry: WorkloadEntry, now: float) -> float:
    return now - (moment(entry.job.created) or now)
