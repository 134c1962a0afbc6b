"""Objects of v1beta1 as v1beta2 has them, as Kueue's own conversion does (apis/kueue/v1beta1, 0.19.2)."""

from collections.abc import Callable, Mapping
from typing import Any

from cli.migrate.rows import FieldVerdict, Json, changed, refused

_OLD = "v1beta1"
Notes = list[tuple[str, FieldVerdict]]


def raise_version(body: Json) -> tuple[Json, Notes]:
    """The body in the words of v1beta2, with a note for each field that has another name or value there.

    The body that is given stays as it is. A part of another type than Kueue has is left to the tables.
    """
    notes: Notes = []
    spec = body.get("spec")
    raised = _RAISED.get(str(body.get("kind")))
    if not str(body.get("apiVersion", "")).endswith(f"/{_OLD}") or not isinstance(spec, dict) or raised is None:
        return body, notes
    spec = dict(spec)
    raised(spec, notes)
    return body | {"spec": spec}, notes


def raise_queue(spec: Json, notes: Notes) -> None:
    """A ClusterQueue of v1beta1."""
    if "cohort" in spec:
        spec["cohortName"] = spec.pop("cohort")
        notes.append(("spec.cohort", changed("it is called so since v1beta2", "spec.cohortName")))
    checks = spec.get("admissionChecks")
    if isinstance(checks, list) and checks:
        if spec.get("admissionChecksStrategy"):
            why = "both admissionChecks and admissionChecksStrategy are set, which Kueue refuses"
            notes.append(("spec.admissionChecks", refused(why, "keep one of the two", grave=True)))
        else:
            spec["admissionChecksStrategy"] = {"admissionChecks": [{"name": name} for name in checks]}
            ours = "spec.admissionChecksStrategy"
            notes.append(("spec.admissionChecks", changed("it stands there since v1beta2", ours)))
    # Of another type it stays, and is refused as a field that v1beta2 has not.
    if isinstance(checks, list):
        del spec["admissionChecks"]
    fungibility = spec.get("flavorFungibility")
    if isinstance(fungibility, dict):
        spec["flavorFungibility"] = dict(fungibility)
        for key, old in (("whenCanBorrow", "Borrow"), ("whenCanPreempt", "Preempt")):
            if fungibility.get(key) == old:
                spec["flavorFungibility"][key] = "MayStopSearch"
                notes.append((f"spec.flavorFungibility.{key}", changed(f"{old} is called MayStopSearch in v1beta2")))


def raise_check(spec: Json, notes: Notes) -> None:
    """An AdmissionCheck of v1beta1."""
    if spec.pop("retryDelayMinutes", None) is not None:
        why = "Kueue reads it no longer since v1beta2 (0.19.2)"
        notes.append(("spec.retryDelayMinutes", refused(why, "the controller of the check says when to try again")))


def raise_cluster(spec: Json, notes: Notes) -> None:
    """A MultiKueueCluster of v1beta1."""
    source: dict[str, Any] = {}
    for old in ("kubeConfig", "clusterProfileRef"):
        if old in spec:
            source[old] = spec.pop(old)
            notes.append((f"spec.{old}", changed("it stands there since v1beta2", f"spec.clusterSource.{old}")))
    if source:
        spec["clusterSource"] = source


_RAISED: Mapping[str, Callable[[Json, Notes], None]] = {
    "ClusterQueue": raise_queue,
    "AdmissionCheck": raise_check,
    "MultiKueueCluster": raise_cluster,
}
