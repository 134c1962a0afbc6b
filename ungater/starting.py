"""Unsuspending and suspending a job: the merge patches of its kind. Pure.

What an admission adds to the pod template goes with the patch that unsuspends the job: node labels of flavors without
a topology, tolerations of all flavors, our gate where pods have slots and the template lacks it, and fewer pods where
only those were admitted. Pods that were admitted by quota alone have no slots: their gate goes, and with it the request
that would bring it back (only `unconstrained` can be served so). When the job is put back, all that is taken away
again: the Workload has the template as it was.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from crds.constants import Keys
from kube.objects import ResourceFlavor
from ungater.jobs import Owner
from ungater.record import Admission

_decode = msgspec.json.Decoder(dict[str, Any]).decode
_DIRECTIVES = ("nodeSelector", "tolerations", "schedulingGates")


def start(owner: Owner, admission: Admission, flavors: Mapping[str, ResourceFlavor], keys: Keys) -> dict[str, Any]:
    """The patch that lets an admitted job run. ``flavors``: those there are, by name."""
    spec: dict[str, Any] = {"suspend": False}
    part, pod_set = admission.part(), owner.pod_sets[0]
    if part is None:
        return _patch(owner, spec)
    if part.count < pod_set.count:
        spec["parallelism"] = part.count
    template = _decode(pod_set.raw).get("spec") or {}
    used = [flavors[name] for name in dict.fromkeys(part.flavors.values()) if name in flavors]
    added: dict[str, Any] = {}
    if labels := _labels(used):
        added["nodeSelector"] = labels
    present = template.get("tolerations") or []
    tolerations = [each for each in _tolerations(used) if each not in present]
    if tolerations:
        added["tolerations"] = [*present, *tolerations]
    if part.slots is not None and not owner.gated:
        added["schedulingGates"] = [*(template.get("schedulingGates") or []), {"name": keys.gate}]
    changed: dict[str, Any] = {"spec": added} if added else {}
    if part.slots is None and owner.gated:
        gates = [gate for gate in template.get("schedulingGates") or [] if gate.get("name") != keys.gate]
        changed = {"spec": {**added, "schedulingGates": gates or None}}
        if keys.unconstrained in (pod_set.template.metadata.annotations or {}):
            changed["metadata"] = {"annotations": {keys.unconstrained: None}}
    if changed:
        spec["template"] = changed
    return _patch(owner, spec)


def stop(owner: Owner) -> dict[str, Any]:
    """The patch that suspends a job."""
    return _patch(owner, {"suspend": True})


def restore(owner: Owner, pod_set: Mapping[str, Any]) -> dict[str, Any] | None:
    """The patch that gives a suspended job back what it had before it was admitted; None where it has that.

    ``pod_set``: as the Workload has it.
    """
    now, before = _decode(owner.pod_sets[0].raw).get("spec") or {}, (pod_set.get("template") or {}).get("spec") or {}
    changed = {
        name: _undone(now.get(name), before.get(name)) for name in _DIRECTIVES if now.get(name) != before.get(name)
    }
    template: dict[str, Any] = {"spec": changed} if changed else {}
    present = owner.pod_sets[0].template.metadata.annotations or {}
    kept = ((pod_set.get("template") or {}).get("metadata") or {}).get("annotations") or {}
    if missing := {name: value for name, value in kept.items() if name not in present}:
        template["metadata"] = {"annotations": missing}
    spec: dict[str, Any] = {"template": template} if template else {}
    least, full, count = pod_set.get("minCount", 0), owner.pod_sets[0].full, pod_set.get("count", 0)
    if least and least <= full < count:
        spec["parallelism"] = count
    return _patch(owner, spec) if spec else None


def _undone(now: Any, before: Any) -> Any:
    """The value in a merge patch: a map is merged, so keys that are to go are null in it."""
    if isinstance(now, dict) and before:
        return {**dict.fromkeys(now), **before}
    return before or None


def _patch(owner: Owner, spec: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"uid": owner.uid}, "spec": spec}


def _labels(flavors: Iterable[ResourceFlavor]) -> dict[str, str]:
    found: dict[str, str] = {}
    for flavor in flavors:
        if flavor.spec.topology is None or not flavor.spec.topology.levels:
            found |= flavor.spec.node_labels or {}
    return found


def _tolerations(flavors: Iterable[ResourceFlavor]) -> list[dict[str, Any]]:
    return [msgspec.to_builtins(each) for flavor in flavors for each in flavor.spec.tolerations or ()]
