"""Unsuspending and suspending a job: the patches of its kind. Pure.

A Job gets a merge patch. A JobSet has its templates in a list, which a merge patch would replace: it gets a JSON Patch.

What an admission adds is node labels and tolerations of its flavors, and what admission checks add
(``podSetUpdates``). Pods behind our gate get it with the patch that removes the gate (`ungater.model.ungate_patch`).
All else goes with the patch that unsuspends the job:

- Our gate, where pods have slots and the template lacks it, and fewer pods where only those were admitted.
- What checks add to a Job: it is a part of what the job asks for while it runs.
- Pods of a Job that were admitted by quota alone have no slots: their gate goes, and with it the request that would
  bring it back (only `unconstrained` can be served so). What their flavors add goes into the template.

When the job is put back, all that is taken away again: the Workload has the template as it was. A JobSet cannot take it
back: JobSet 0.12.0 merges its templates into the Jobs that are there (``resumeJob``: node selectors are united,
tolerations and gates appended). So the pods of a JobSet keep the gate, or get it where something is to be added to
them, and nothing that may differ from one admission to the next is put into its templates but labels and annotations.

Beside Kueue in its domain, a template gets what Kueue would add to it as well, so that Kueue can take the job back: its
label and annotation, by which it finds the pods of a Workload behind its gate, and a request for pods that have slots
and none, without which it passes them over (0.19.2, pkg/controller/tas/topology_ungater.go and pkg/util/tas, IsTAS).

What a check adds may not contradict the template, a flavor, or another check (`ClashError`). That is Kueue's rule.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from crds.constants import GPU_LINK, KUEUE_POD_SET, KUEUE_WORKLOAD, Keys
from kube.objects import PodTemplate, ResourceFlavor, Toleration
from kube.patches import escape as pointer
from kube.workloads import PodSetUpdate
from ungater.model.admission import Admission, PodSetAssignment
from ungater.model.job_view import JOB, JobView, PodSetView
from ungater.model.workload_entry import ObservedWorkload, WorkloadEntry

Body = dict[str, Any] | list[dict[str, Any]]
_decode = msgspec.json.Decoder(dict[str, Any]).decode
_DIRECTIVES = ("nodeSelector", "tolerations", "schedulingGates")
_META = ("labels", "annotations")

Updates = Sequence[tuple[str, PodSetUpdate]]  # (check, what it adds)


class ClashError(ValueError):
    """What an admission check adds cannot be added; the text says which check, field and values."""


class Added(msgspec.Struct):
    """What goes into a pod template. ``said``: who added a key to a map, by (map, key)."""

    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    node_selector: dict[str, str] = msgspec.field(default_factory=dict)
    tolerations: list[Toleration] = msgspec.field(default_factory=list)
    said: dict[tuple[str, str], str] = msgspec.field(default_factory=dict)


def updates_of(known: ObservedWorkload, checks: Iterable[str]) -> list[tuple[str, PodSetUpdate]]:
    """What these admission checks add, where they are ready."""
    return [(check, update) for check in checks for update in known.updates.get(check, ())]


def added(
    owner: JobView, part: PodSetAssignment, flavors: Mapping[str, ResourceFlavor], keys: Keys, updates: Updates = ()
) -> Added:
    """What the flavors of an admission and admission checks add to the pods of one pod set. Raises ClashError."""
    pod_set = next(one for one in owner.pod_sets if one.name == part.name)
    names = [one.name for one in owner.pod_sets]
    found = of_flavors(part, flavors)
    for check, update in updates:
        if update.name not in names:
            raise ClashError(
                f'admission check {check}: podSetUpdates: there is no pod set "{update.name}", but {", ".join(names)}'
            )
        if update.name != pod_set.name:
            continue
        _add(found, pod_set, keys, check, update)
    return found


def to_pods(
    entry: WorkloadEntry, pod_set: str, flavors: Mapping[str, ResourceFlavor], keys: Keys, checks: Iterable[str]
) -> Added:
    """What is added to pods of a pod set when their gate goes. ``checks``: the admission checks of its queue."""
    part = entry.admission.pod_set_named(pod_set) if entry.admission is not None else None
    if part is None:
        return Added()
    if not any(one.name == pod_set for one in entry.job.pod_sets):
        return of_flavors(part, flavors)
    try:
        return added(entry.job, part, flavors, keys, updates_of(entry.observed, checks) if entry.observed else ())
    except ClashError:  # a check says something else since the job was started with what it said
        return of_flavors(part, flavors)


def of_flavors(part: PodSetAssignment, flavors: Mapping[str, ResourceFlavor]) -> Added:
    """What the flavors of an admission add to the pods of one pod set; ``flavors``: those there are, by name.

    The flavor that the pods have their slots in comes last: their nodes have its labels, whatever others say.
    """
    placed_in = part.slots.flavor if part.slots is not None else ""
    names = [*(name for name in dict.fromkeys(part.flavors.values()) if name != placed_in), placed_in]
    used = [flavors[name] for name in names if name in flavors]
    labels = {key: value for flavor in used for key, value in (flavor.spec.node_labels or {}).items()}
    said = {("nodeSelector", key): "its flavor" for key in labels}
    more = [each for one in used for each in one.spec.tolerations or ()]
    return Added(node_selector=labels, tolerations=more, said=said)


def _add(found: Added, pod_set: PodSetView, keys: Keys, check: str, update: PodSetUpdate) -> None:
    meta, spec = pod_set.template.metadata, pod_set.template.spec
    ours = {*keys.requests, keys.workload, keys.pod_set}
    for name, wanted, present, into in (
        ("labels", update.labels, meta.labels, found.labels),
        ("annotations", update.annotations, meta.annotations, found.annotations),
        ("nodeSelector", update.node_selector, spec.node_selector, found.node_selector),
    ):
        for key, value in sorted((wanted or {}).items()):
            there, source = (present or {}).get(key), "the pod template"
            if there is None:
                there, source = into.get(key), found.said.get((name, key), "")
            field_ = f'admission check {check}: podSetUpdates of pod set {update.name}: {name}[{key}]: "{value}"'
            if there is not None and there != value:
                raise ClashError(f'{field_} contradicts "{there}" of {source}')
            # A check could else ask for another place, or name another workload, once the place is decided.
            if there is None and key in ours:
                raise ClashError(f"{field_} would change what the job asks of Topogate, after it was placed")
            if there is None:
                into[key], found.said[name, key] = value, f"admission check {check}"
    found.tolerations.extend(update.tolerations or ())


def merged(template: PodTemplate, more: Added) -> PodTemplate:
    """The template as placement sees it once all is added."""
    spec, meta = template.spec, template.metadata
    spec = msgspec.structs.replace(
        spec,
        node_selector={**(spec.node_selector or {}), **more.node_selector} or None,
        tolerations=(*(spec.tolerations or ()), *more.tolerations) or None,
    )
    meta = msgspec.structs.replace(meta, labels={**(meta.labels or {}), **more.labels} or None)
    return msgspec.structs.replace(template, metadata=meta, spec=spec)


def start(
    owner: JobView,
    admission: Admission,
    flavors: Mapping[str, ResourceFlavor],
    keys: Keys,
    updates: Updates = (),
    *,
    kueue: str = "",
) -> Body:
    """The patch that lets an admitted job run. ``flavors``: those there are, by name. Raises ClashError.

    ``kueue``: beside Kueue in its domain, the name of the Workload by which Kueue could take the job back.
    It is refused (a conflict) where the job is not any more what was admitted: somebody may edit it meanwhile.
    """
    changes: list[dict[str, Any]] = []
    for one in owner.pod_sets:
        part, change = admission.pod_set_named(one.name), dict[str, Any]()
        if part is not None and part.count:
            more = added(owner, part, flavors, keys, updates)
            # Now or never: no template changes while its job runs.
            if kueue:
                _add_for_kueue(more, one, part, keys, kueue)
            change = _changes(owner, part, more, of_flavors(part, flavors), keys)
        changes.append(change)
    if owner.kind != JOB:
        # The API server compares a resourceVersion that a JSON Patch sets
        # as it does in an update: 409 where it is older.
        as_seen = {"op": "replace", "path": "/metadata/resourceVersion", "value": str(owner.version)}
        uid, *rest = _of_jobset(owner, changes, {"suspend": False})
        return [uid, *([as_seen] if owner.version else []), *rest]
    spec: dict[str, Any] = {"suspend": False}
    part = admission.pod_set_named()
    # Partial admission: the Workload keeps the full count, from which `restore` gives it back.
    if part is not None and part.count < owner.pod_sets[0].count:
        spec["parallelism"] = part.count
    if changes[0]:
        spec["template"] = changes[0]
    version = {"resourceVersion": str(owner.version)} if owner.version else {}
    return {"metadata": {"uid": owner.uid, **version}, "spec": spec}


def _add_for_kueue(more: Added, pod_set: PodSetView, part: PodSetAssignment, keys: Keys, kueue: str) -> None:
    more.labels[KUEUE_POD_SET], more.annotations[KUEUE_WORKLOAD] = part.name, kueue
    # Kueue looks at no pod without a request (0.19.2, pkg/util/tas, IsTAS): it would stay behind the gate for ever.
    if part.slots is not None and pod_set.request is None:
        more.annotations[keys.unconstrained] = "true"


def _changes(owner: JobView, part: PodSetAssignment, more: Added, of_flavor: Added, keys: Keys) -> dict[str, Any]:
    """What an admission changes in the template of one pod set; ``more``: all that is added, flavors first."""
    pod_set = next(one for one in owner.pod_sets if one.name == part.name)
    template = _decode(pod_set.raw).get("spec") or {}
    gates = template.get("schedulingGates") or []
    gated = any(gate.get("name") == keys.gate for gate in gates)
    kept = owner.kind != JOB and (gated or bool(more.node_selector or more.tolerations))
    changed: dict[str, Any] = {}
    if owner.kind == JOB:
        selector, tolerations = more.node_selector, more.tolerations
        if part.slots is not None:
            # Pods with slots get what flavors add with the patch that removes their gate.
            selector = {key: value for key, value in selector.items() if key not in of_flavor.node_selector}
            # `added` begins with what flavors add, so what follows in the list is of checks.
            tolerations = tolerations[len(of_flavor.tolerations) :]
        if selector:
            changed["nodeSelector"] = selector
        present = template.get("tolerations") or []
        wanted = [*present]
        for each in map(msgspec.to_builtins, tolerations):
            if each not in wanted:
                wanted.append(each)
        # Sent whole, as a merge patch replaces a list.
        if len(wanted) > len(present):
            changed["tolerations"] = wanted
    meta: dict[str, Any] = {"labels": more.labels} if more.labels else {}
    if more.annotations:
        meta["annotations"] = more.annotations
    if (part.slots is not None or kept) and not gated:
        changed["schedulingGates"] = [*gates, {"name": keys.gate}]
    if part.slots is None and gated and not kept:
        changed["schedulingGates"] = [gate for gate in gates if gate.get("name") != keys.gate] or None
        present = pod_set.template.metadata.annotations or {}
        if keys.unconstrained in present:  # else its pods would be gated anew
            # The wish for linked GPUs asks for `unconstrained` by itself:
            # "false" declines it. Else null removes the annotation.
            said = "false" if GPU_LINK in present else None
            meta["annotations"] = {**more.annotations, keys.unconstrained: said}
    return {**({"spec": changed} if changed else {}), **({"metadata": meta} if meta else {})}


def stop(owner: JobView) -> Body:
    """The patch that suspends a job."""
    return _patch(owner, {"suspend": True}) if owner.kind == JOB else _of_jobset(owner, [], {"suspend": True})


def restore(owner: JobView, pod_sets: Sequence[Mapping[str, Any]]) -> Body | None:
    """The patch that gives a suspended job back what it had before it was admitted; None where it has that.

    ``pod_sets``: as the Workload has them.
    """
    by_name = {before.get("name", ""): before.get("template") for before in pod_sets}
    changes = [_before(one, by_name.get(one.name)) for one in owner.pod_sets]
    if owner.kind != JOB:
        return _of_jobset(owner, changes, {}) if any(changes) else None
    spec: dict[str, Any] = {"template": changes[0]} if changes[0] else {}
    kept = pod_sets[0]
    least, full, count = kept.get("minCount", 0), owner.pod_sets[0].full, kept.get("count", 0)
    if least and least <= full < count:
        spec["parallelism"] = count
    return _patch(owner, spec) if spec else None


def _before(pod_set: PodSetView, before: Mapping[str, Any] | None) -> dict[str, Any]:
    """What is to be changed in a template so that it is as the Workload has it, as a merge patch."""
    template, changed = _decode(pod_set.raw), dict[str, Any]()
    for place, names in (("metadata", _META), ("spec", _DIRECTIVES)):
        now, then = template.get(place) or {}, (before or {}).get(place) or {}
        for name in names:
            have, had = now.get(name) or None, then.get(name) or None
            if have == had:
                continue
            # A map is merged, so keys that are to go are null in it: all that it has now first, then those that stay.
            wanted = {**dict.fromkeys(have), **had} if isinstance(have, dict) and had else had
            changed.setdefault(place, {})[name] = wanted
    return changed


def _of_jobset(owner: JobView, changes: Sequence[Mapping[str, Any]], spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A JSON Patch of a JobSet: ``changes`` of its pod templates, as merge patches, and fields of its spec."""
    # Another JobSet may have taken the name.
    body: list[dict[str, Any]] = [{"op": "test", "path": "/metadata/uid", "value": owner.uid}]
    for at, (pod_set, change) in enumerate(zip(owner.pod_sets, changes, strict=False)):
        if change:
            path = f"/spec/replicatedJobs/{at}"
            # A JSON Patch goes by position: the test refuses it where the list has changed.
            body.append({"op": "test", "path": f"{path}/name", "value": pod_set.name})
            body += _operations(f"{path}/template/spec/template", _decode(pod_set.raw), change)
    body += ({"op": "add", "path": f"/spec/{name}", "value": value} for name, value in spec.items())
    return body


def _operations(at: str, now: Mapping[str, Any], change: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A merge patch as operations of a JSON Patch on what is there now."""
    for name, value in change.items():
        path, have = f"{at}/{pointer(name)}", now.get(name)
        if isinstance(value, dict) and isinstance(have, dict):
            yield from _operations(path, have, value)
        elif isinstance(value, dict):
            # A null of the merge patch takes a key away; there is no map here that could have it.
            yield {"op": "add", "path": path, "value": {key: each for key, each in value.items() if each is not None}}
        elif value is not None:
            yield {"op": "add", "path": path, "value": value}
        elif name in now:
            yield {"op": "remove", "path": path}


def _patch(owner: JobView, spec: dict[str, Any]) -> Body:
    return {"metadata": {"uid": owner.uid}, "spec": spec}
