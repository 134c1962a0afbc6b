"""The ValidatingAdmissionPolicies of `manifests/base/policy.yaml`, as far as tenants of the histories meet them.

Who writes: the controller under test and administrators may do all of it; controllers of the cluster may change labels
that rank pods, and owner references; tenants may not.
"""

from typing import Any

Json = dict[str, Any]

GATE = "kueue.x-k8s.io/topology"
MARK = "kueue.x-k8s.io/topology-workload"
ROLE = "kueue.x-k8s.io/topology-podset"
ADMITTED_QUOTA = "topogate.dev/admitted-quota"
CONTROLLER = "controller"  # who writes for the code under test
TENANTS = frozenset({"user", "tenant"})
WRITTEN = (MARK, ROLE, ADMITTED_QUOTA, "topogate.dev/numa-placement-predicted")
CLAIMS = (
    "kueue.x-k8s.io/queue-name",
    "kueue.x-k8s.io/priority-class",
    "kueue.x-k8s.io/max-exec-time-seconds",
    "kueue.x-k8s.io/pod-group-name",
    "kueue.x-k8s.io/pod-group-pod-index",
)
RANKS = (
    "batch.kubernetes.io/job-completion-index",
    "apps.kubernetes.io/pod-index",
    "jobset.sigs.k8s.io/replicatedjob-name",
    "jobset.sigs.k8s.io/job-index",
    "leaderworkerset.sigs.k8s.io/name",
    "leaderworkerset.sigs.k8s.io/group-index",
    "leaderworkerset.sigs.k8s.io/worker-index",
)
REQUESTS = (
    "kueue.x-k8s.io/require-topology",
    "kueue.x-k8s.io/prefer-topology",
    "kueue.x-k8s.io/podset-unconstrained-topology",
)
WISHES = (
    *REQUESTS,
    "kueue.x-k8s.io/pod-group-name",
    "kueue.x-k8s.io/pod-group-total-count",
    "kueue.x-k8s.io/role-hash",
)


def forbids(plural: str, old: Json, new: Json, who: str) -> str | None:
    """Why a write is refused; None where it is not. ``old``: {} for an object that is made."""
    if who in {CONTROLLER, "admin"}:
        return None
    if plural == "pods":
        return _pod(old, new, tenant=who in TENANTS)
    if plural == "workloads" and who in TENANTS:
        return _workload(old, new)
    return None


def _pod(old: Json, new: Json, *, tenant: bool) -> str | None:  # noqa: PLR0911 -- one return a rule
    before, after = (_said(each, "annotations") for each in (old, new))
    if not old:
        if not _gated(new) and any(name in after for name in REQUESTS):
            return "a topology request without the gate"
        found = [name for name in WRITTEN if name in after and name != ROLE]
        return f"{found[0]} is written by Topogate alone" if found else None
    if _gated(old) and not _gated(new):
        return "the gate is removed by Topogate alone"
    if _changed(before, after, WRITTEN):
        return "an annotation that Topogate alone writes was changed"
    if not _gated(old) and MARK not in before and ROLE not in before:
        return None
    labels = [_said(each, "labels") for each in (old, new)]
    if _changed(*labels, CLAIMS):
        return "a label by which Topogate counts the pod was changed"
    if tenant and _changed(*labels, RANKS):
        return "a label by which Topogate places the pod was changed"
    if _changed(before, after, WISHES):
        return "an annotation by which Topogate places the pod was changed"
    references = [each["metadata"].get("ownerReferences") or [] for each in (old, new)]
    if tenant and references[0] != references[1]:
        return "the owner of a pod was changed"
    return None


def _workload(old: Json, new: Json) -> str | None:
    if not old:
        return "Workloads are made by Topogate alone"
    before, after = old["spec"], new["spec"]
    if any(before.get(name) != after.get(name) for name in {*before, *after} - {"active"}):
        return "of a Workload only spec.active may be changed"
    for name in ("ownerReferences", "finalizers"):
        if (old["metadata"].get(name) or []) != (new["metadata"].get(name) or []):
            return f"metadata.{name} is written by Topogate alone"
    annotations = [_said(each, "annotations") for each in (old, new)]
    ours = [
        name for name in {*annotations[0], *annotations[1]} if name.startswith(("topogate.dev/", "kueue.x-k8s.io/"))
    ]
    return "an annotation that Topogate alone writes was changed" if _changed(*annotations, ours) else None


def _said(obj: Json, name: str) -> Json:
    return (obj.get("metadata") or {}).get(name) or {}


def _changed(before: Json, after: Json, names: Any) -> bool:
    return any(before.get(name) != after.get(name) for name in names)


def _gated(pod: Json) -> bool:
    return any(gate["name"] == GATE for gate in pod["spec"].get("schedulingGates") or ())
