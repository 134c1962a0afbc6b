"""The ungating patch: one merge patch a pod that narrows its node selector, names its workload and removes our gate.

This is the hot path: all pods of a slice get the same bytes but for their uid, so those are made once a slice. The uid
makes the API server refuse the patch (409) where another pod has taken the name meanwhile. Other gates stay. Where the
slice is one node, the pod is bound to it by ``metadata.name`` too: kube-scheduler then looks at that node alone. What
is predicted for a pod inside that node differs from pod to pod, and is put in as further annotations.

What was counted when the pod was placed goes with it: the node labels and the tolerations of its flavors. Kubernetes
lets a node selector be narrowed while a pod is gated, and takes tolerations that are added to those that are there.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from crds.constants import ADMITTED_QUOTA, HOSTNAME_LABEL, Keys
from engine.cluster.levels import domain_labels
from kube.objects import NodeSelectorTerm, Pod, Requirement, Toleration
from ungater.model.pod_slots import Slot

_encode = msgspec.json.encode
# Not a uid, so that it occurs in the encoded body once; the body is split there.
_UID = "00000000-uid-of-the-pod"
_MORE = "@"  # no legal key of an annotation, so that nothing else is taken for it
_NOTHING: Mapping[str, str] = {}

Terms = tuple[NodeSelectorTerm, ...]
Tolerations = tuple[Toleration, ...]


class UngatePatches:
    """Patches for the pods of one pod set; keep one for as long as its slots stay the same.

    ``selector`` and ``tolerations``: what its admission adds; ``quota``: by which quota its pods run
    (`crds.admitted_quota`), "" without any.
    """

    def __init__(
        self,
        keys: Keys,
        workload: str,
        pod_set: str,
        levels: tuple[str, ...],
        selector: Mapping[str, str] = _NOTHING,
        *,
        tolerations: Tolerations = (),
        quota: str = "",
    ) -> None:
        self._keys = keys
        self._annotations = {keys.workload: workload, keys.pod_set: pod_set}
        if quota:
            self._annotations[ADMITTED_QUOTA] = quota
        self.levels = levels
        self._selector = selector
        self._tolerations = tolerations
        self._made: dict[tuple[Slot, tuple[str, ...], Terms, Tolerations], tuple[bytes, bytes, bytes]] = {}

    def body(self, pod: Pod, slot: Slot, more: Mapping[str, str] = _NOTHING) -> bytes:
        """The merge patch that sends this pod to this slot; ``more``: its own annotations."""
        gates = pod.spec.scheduling_gates or ()
        others = tuple([gate.name for gate in gates if gate.name != self._keys.gate]) if len(gates) != 1 else ()
        affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
        required = affinity.required_during_scheduling_ignored_during_execution if affinity is not None else None
        terms = required.node_selector_terms or () if required is not None else ()
        # Part of the key only where it matters: pods that differ in tolerations share the bytes where none are added.
        own_tolerations = (pod.spec.tolerations or ()) if self._tolerations else ()
        key = (slot, others, terms, own_tolerations)
        parts = self._made.get(key)
        if parts is None:
            parts = self._made[key] = self._make(*key)
        before, between, after = parts
        own = b"," + _encode(more)[1:-1] if more else b""
        return b"".join((before, pod.metadata.uid.encode(), between, own, after))

    def marks(self, pod: Pod) -> dict[str, Any]:
        """The merge patch that says whose a pod is that was let go already, and changes nothing else of it."""
        return {"metadata": {"uid": pod.metadata.uid, "annotations": self._annotations}}

    def _make(
        self, slot: Slot, gates: tuple[str, ...], terms: Terms, own_tolerations: Tolerations
    ) -> tuple[bytes, bytes, bytes]:
        spec: dict[str, Any] = {
            "nodeSelector": {**self._selector, **domain_labels(self.levels, slot.values)},
            # In a merge patch null removes the field, and a list replaces it whole: gates of others are written back.
            "schedulingGates": [{"name": name} for name in gates] or None,
        }
        missing = [each for each in self._tolerations if each not in own_tolerations]
        if missing:  # a merge patch replaces a list whole
            spec["tolerations"] = [*own_tolerations, *missing]
        # PreFilter of kube-scheduler's NodeAffinity narrows to one node
        # by metadata.name alone, never by the hostname label.
        if slot.node and self.levels[-1] == HOSTNAME_LABEL and (pinned := _pin(terms, slot.node)) is not None:
            required = {"nodeSelectorTerms": pinned}
            spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
        body = {"metadata": {"uid": _UID, "annotations": {**self._annotations, _MORE: ""}}, "spec": spec}
        # The keys of the body stand in the order of insertion: the uid comes
        # first, and user text after it cannot match earlier.
        before, _, rest = _encode(body).partition(_UID.encode())
        between, _, after = rest.partition(b"," + _encode({_MORE: ""})[1:-1])
        return before, between, after


def _pin(terms: Terms, node: str) -> list[NodeSelectorTerm] | None:
    """The terms with the node's name added to each; None where the API server would not take that.

    Terms are ORed, so the name must be in every one of them. A term without requirements selects nothing, and the API
    server refuses to have any added to it.
    """
    name = Requirement(key="metadata.name", operator="In", values=(node,))
    if not terms:
        return [NodeSelectorTerm(match_fields=(name,))]
    # Then the node selector alone has to do: it names the host by its label.
    if any(not term.match_expressions and not term.match_fields for term in terms):
        return None
    return [
        NodeSelectorTerm(match_expressions=term.match_expressions, match_fields=(*(term.match_fields or ()), name))
        for term in terms
    ]
