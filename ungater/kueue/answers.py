"""The check of a Workload as it should be: plain functions of what was seen. ``now`` is an argument.

Rules
- The check is Ready only while our own Workload has its admission stored, for exactly the flavors and the count that
  Kueue assigned. What it adds to the pods stays as it is from then on.
- Without a place it says what `retries.verdict` says: Pending with the reason, or that the quota is given back.
- What Kueue leaves Ready without quota (it does where a queue is stopped) is Pending again, before it has quota anew.
- News are written at once, the same in other words rarely, and nothing while Kueue is at it.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from crds.constants import Keys
from crds.request import RequestError, parse_request
from engine.reasons import Reason
from kube.objects import StrMap, Toleration, controller_of, is_true
from kube.workloads import PodSetUpdate
from ungater.kueue.decide import has_quota
from ungater.model import kueue_objects as kueue
from ungater.model.conditions import timestamp
from ungater.model.kueue_objects import PENDING, READY, REJECTED, RETRY, KueueCheckState, KueueWorkload

LOOKING = "Topogate looks for a place"
NOTHING_TO_PLACE = "the pods ask for no topology: nothing to place"
NOTHING_KEPT = "Kueue took its quota back: no place is kept"
DETAILS_AFTER = 10.0  # seconds: the same reason in other words


class Side(msgspec.Struct, frozen=True):
    """Our side of a job. ``asks``: its pods want a topology. ``placed``: all have a slot that is stored; ``where``."""

    asks: bool
    placed: bool = False
    where: str = ""
    reason: Reason | None = None
    message: str = ""
    selector: StrMap = msgspec.field(default_factory=dict)  # of our flavor, for the pods
    tolerations: tuple[Toleration, ...] = ()


def has_request(workload: KueueWorkload, keys: Keys) -> bool:
    """Whether any of its pod templates carries a topology request or our gate."""
    for pod_set in workload.spec.pod_sets:
        try:
            asks = parse_request(pod_set.template.metadata.annotations, keys) is not None
        except RequestError:
            asks = True  # in words that nobody can read: our side says what is wrong with them
        if asks or any(gate.name == keys.gate for gate in pod_set.template.spec.scheduling_gates or ()):
            return True
    return False


def answer(workload: KueueWorkload, check: KueueCheckState, side: Side, unplaced: str) -> KueueCheckState | None:
    """The check as it should be; None where it is to be left alone. Without times.

    ``unplaced``: the state of one that has quota and no place.
    """
    if not has_quota(workload):
        return _without_quota(workload, check, side)
    if check.state in {RETRY, REJECTED}:
        return None  # Kueue is at it
    if not side.asks:
        return KueueCheckState(name=check.name, state=READY, message=NOTHING_TO_PLACE)
    if side.placed:
        # Of one that is Ready the updates cannot change any more: Kueue may have started the job with them.
        updates = check.pod_set_updates if check.state == READY else None
        if check.state != READY and (side.selector or side.tolerations):
            name = workload.spec.pod_sets[0].name if workload.spec.pod_sets else "main"
            selector, tolerations = side.selector or None, side.tolerations or None
            updates = (PodSetUpdate(name=name, node_selector=selector, tolerations=tolerations),)
        return KueueCheckState(name=check.name, state=READY, message=side.where, pod_set_updates=updates)
    return _unplaced(workload, check, side, unplaced)


def _unplaced(workload: KueueWorkload, check: KueueCheckState, side: Side, state: str) -> KueueCheckState | None:
    if is_true(workload.status.conditions, kueue.ADMITTED):
        return None  # it runs; what became of its slots is on our Workload
    if not side.message and check.state == state == PENDING:
        return None  # no news yet, and soon there is some
    message = shorten(f"{side.reason}: {side.message}" if side.reason else side.message or LOOKING)
    return KueueCheckState(name=check.name, state=state, message=message)


def _without_quota(workload: KueueWorkload, check: KueueCheckState, side: Side) -> KueueCheckState | None:
    """An eviction resets the checks. Where a queue is stopped nobody does, and new quota would admit it at once."""
    # `has_quota` was false: with QuotaReserved still True the quota is being taken back.
    if is_true(workload.status.conditions, kueue.QUOTA_RESERVED) or is_true(workload.status.conditions, kueue.FINISHED):
        return None  # on its way out
    if not side.asks or workload.metadata.deletion_timestamp is not None or check.state in {PENDING, RETRY}:
        return None
    return KueueCheckState(name=check.name, state=PENDING, message=NOTHING_KEPT)


def seconds_until_due(before: KueueCheckState, wanted: KueueCheckState, since: float | None) -> float | None:
    """In how many seconds ``wanted`` is to be written; None where nothing changed.

    ``since``: seconds since this check was last written. Where only the wording of one reason changed it waits.
    """
    same = (before.state, before.message) == (wanted.state, wanted.message)
    if wanted.state == READY:  # of others nobody reads the updates, and Kueue may own what is left of them
        same = same and before.pod_set_updates == wanted.pod_set_updates
    if same:
        return None
    if before.state != wanted.state or _reason(before) != _reason(wanted) or since is None:
        return 0.0
    return max(0.0, DETAILS_AFTER - since)


def _reason(check: KueueCheckState) -> str:
    return check.message.partition(":")[0]


def body(
    api_version: str, workload: KueueWorkload, checks: Sequence[KueueCheckState], now: float, *, delays: bool = True
) -> dict[str, Any]:
    """What is applied to the status of a Workload: all entries of ours, for a later apply gives up what it leaves out.

    Refused as a conflict where the Workload is no longer the one that was judged. ``delays`` False: the API has no
    ``requeueAfterSeconds`` yet, and the time of return is said in ``requeueState``, as Kueue's own checks did then.
    """
    before = {check.name: check for check in workload.status.admission_checks or ()}
    entries, status = [], {}
    for check in checks:
        # State and message are required, so they are sent where they are defaults too.
        entry: dict[str, Any] = {**msgspec.to_builtins(check), "state": check.state, "message": check.message}
        old = before.get(check.name)
        # `retries.next_step` counts a delay from this moment: it moves with the state alone.
        kept = old is not None and old.state == check.state and old.last_transition_time
        entry["lastTransitionTime"] = old.last_transition_time if old is not None and kept else timestamp(now)
        if not delays and (seconds := entry.pop("requeueAfterSeconds", None)) is not None:
            counted = workload.status.requeue_state
            at = datetime.fromtimestamp(now + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            status["requeueState"] = {"count": ((counted.count or 0) if counted else 0) + 1, "requeueAt": at}
        entries.append(entry)
    meta = workload.metadata
    # uid and resourceVersion: an apply without them would write to whatever has the name by now.
    metadata = {
        "name": meta.name,
        "namespace": meta.namespace,
        "uid": meta.uid,
        "resourceVersion": meta.resource_version,
    }
    return {
        "apiVersion": api_version,
        "kind": "Workload",
        "metadata": metadata,
        "status": {"admissionChecks": entries, **status},
    }


def shorten(message: str) -> str:
    """At most as long as the API takes, and as a person reads."""
    return message if len(message) <= kueue.MAX_MESSAGE else message[: kueue.MAX_MESSAGE - 1] + "…"


def unserved(workload: KueueWorkload) -> tuple[Reason, str]:
    """Why a workload whose owner we do not serve, and whose pods have our gate, cannot be placed."""
    owner = controller_of(workload.metadata)
    what = f"its owner, {owner.kind} {owner.name}, is" if owner else "it has no controlling owner; a bare pod is"
    return Reason.UNSUPPORTED_OWNER, (
        f"{what} not served, only Jobs and JobSets with a topology request are. Create it again without the annotation"
    )
