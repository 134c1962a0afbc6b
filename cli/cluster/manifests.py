"""Manifests as a user writes them, turned into the Jobs and pods that would come of them.

What the API server and a kind's controller would add is added here as far as it decides placement: defaults, what the
webhook stamps (by its own code), and the pods of a Deployment, StatefulSet or LeaderWorkerSet, with the claims that are
made for them.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from cli.cluster import dump as dumps
from cli.cluster.dump import FoundObject
from cli.output import Failure
from crds.constants import DEFAULT_QUEUE, WORKER_INDEX, Keys
from crds.owner_templates import pointer_keys
from crds.spelling import meant
from engine.reasons import Reason
from kube import objects
from kube.parents import JobSet, LeaderWorkerSet
from kube.pods.convert import pod_requests
from kube.pods.devices import ResourceClaim, ResourceClaimTemplate
from kube.pods.templates import template_of
from kube.pods.volumes import claims_of
from ungater.cache.cache import Cache
from ungater.jobs.leaderworkerset import GROUP, NAME
from webhook import large
from webhook import objects as seen
from webhook.checks import QueueRoute
from webhook.handed_down import OWNER_KINDS, decide_owner
from webhook.jobsets import mutate_jobset
from webhook.mutate import Add, Decision, MutationRules, mutate_job, mutate_pod

_CLAIM: Final = "PersistentVolumeClaim"
_DEVICES: Final = "ResourceClaim"
_TEMPLATE: Final = "ResourceClaimTemplate"
NAMED: Final = frozenset({_CLAIM, _DEVICES, _TEMPLATE})  # nothing to place, but what others name
MOST_PODS: Final = 100_000  # of one object: more is a slip of the finger
_SCALED: Final = {("apps", "Deployment"): "ReplicaSet", ("apps", "ReplicaSet"): "ReplicaSet"}
Json = dict[str, Any]


class Manifest(msgspec.Struct):
    """One object that would be submitted, and what comes of it. ``denied``: why it is refused."""

    kind: str
    namespace: str
    name: str
    jobs: list[objects.Job] = msgspec.field(default_factory=list)
    job_sets: list[JobSet] = msgspec.field(default_factory=list)
    leader_sets: list[LeaderWorkerSet] = msgspec.field(default_factory=list)
    pods: list[objects.Pod] = msgspec.field(default_factory=list)
    claims: dict[str, objects.ClaimSpec] = msgspec.field(default_factory=dict)  # by namespace and name
    templates: list[ResourceClaimTemplate] = msgspec.field(default_factory=list)
    device_claims: list[ResourceClaim] = msgspec.field(default_factory=list)
    warnings: tuple[str, ...] = ()
    denied: str = ""
    reason: str = str(Reason.INVALID_REQUEST)  # of what is denied

    def deny(self, why: str, reason: str = str(Reason.INVALID_REQUEST)) -> None:
        """It is refused."""
        self.denied, self.reason = why, reason

    def warn(self, *warnings: str) -> None:
        """Whoever submits it is told so, once each."""
        self.warnings = tuple(dict.fromkeys((*self.warnings, *warnings)))

    @property
    def title(self) -> str:
        """``job/train``."""
        return f"{self.kind.lower()}/{self.name}"


def read(files: Sequence[str]) -> tuple[list[FoundObject], list[str]]:
    """What can be placed, and the kinds that were passed over.

    Raises Failure where a file cannot be read, an object is malformed, or there is nothing to place.
    """
    found, passed, hint = list[FoundObject](), list[str](), ""
    for file in files:
        for one in dumps.objects_in(file):
            # By group and kind alone: a version that nobody serves is reported by the dry run at the API server.
            if (one.api_group, one.kind) in KINDS:
                found.append(one)
            else:
                passed.append(str(one))
                if not hint:
                    # What an object was perhaps meant to be, that can be placed; "" where nothing is like it.
                    groups = [group for group, kind in KINDS if kind == one.kind]
                    if groups:
                        hint = f"; expected apiVersion {f'{groups[0]}/...' if groups[0] else 'v1'}, as a {one.kind} has"
                    else:
                        hint = meant(one.kind, (kind for _, kind in KINDS))
                        hint = f"; {hint}" if hint else ""
    if all(one.kind in NAMED for one in found):
        kinds = ", ".join(kind for _, kind in KINDS if kind not in NAMED)
        others = f"; there is {', '.join(passed[:4])}" if passed else ""
        raise Failure(f"{', '.join(files)}: nothing to place: expected {kinds}{others}{hint}")
    return found, passed


class Maker:
    """Makes what would come of objects, one after the other: each gets names and uids of its own."""

    def __init__(
        self,
        cache: Cache,
        keys: Keys,
        namespace: str,
        created: str,
        *,
        require_queue: bool = False,
        asked: str = "",
    ) -> None:
        """``asked``: the namespace that was asked for by name; ``namespace`` is that of objects that name none."""
        self._keys = keys
        self._namespace, self._asked = namespace, asked
        self._created = created
        self._numbers = 0
        self._leaders_of = cache.stores.leader_set
        # The webhook keeps the same table, so that a job of a stopped queue gets the same warning.
        routes = {name: _route(cache, *name) for name in cache.queues.config.local}
        queues = {name: route for name, route in routes.items() if name[1]}
        self._rules = MutationRules(keys, dict(cache.flavors), queues, require_queue, cache.level_names)

    def make_manifest(self, one: FoundObject) -> Manifest:
        """Raises Failure where a field is not what it has to be."""
        meta = _mapping(one, one.body, "metadata")
        namespace = str(meta.get("namespace") or self._namespace)
        # The API server appends five characters; here a number does, so that runs are equal.
        name = str(meta.get("name") or f"{meta.get('generateName', '')}{self._next_number():05x}")
        if not one.name:
            raise one.fail("metadata.name", "is missing: every object needs a name")
        made = Manifest(one.kind, namespace, name)
        one = self._in_default_queue(one, made)
        if (one.api_group, one.kind) in OWNER_KINDS:
            one = self._handed_down(one, made)
        if not made.denied:
            KINDS[one.api_group, one.kind](self, one, made)
        try:  # what it asks for is read here, where its file and line are known
            # Pods of one object are alike: the first speaks for all.
            for spec in (*(template_of(job).spec for job in made.jobs), *(pod.spec for pod in made.pods[:1])):
                pod_requests(spec)
        except ValueError as error:
            raise one.fail("", str(error)) from None
        own = meta.get("namespace")
        if self._asked and own and own != self._asked:
            made.warn(f"metadata.namespace of {one} counts: -n {self._asked} is for objects that name none")
        return made

    def job(self, one: FoundObject, made: Manifest) -> None:
        """A Job."""
        body = self._submitted(one, made)
        # As the webhook does: it reads a few fields and measures the rest.
        job, beyond = one.read_body(body, seen.ReviewedJob), large.of_object("Job", msgspec.json.encode(body))
        decision = mutate_job(job, self._rules, beyond=beyond)
        if not _noted(made, decision):
            # In the API server's order: the webhook's patch may suspend the Job, and then its controller writes the
            # condition.
            body = self._suspended(patched(body, decision.patch))
            made.jobs.append(one.read_body(body, objects.Job))

    def job_set(self, one: FoundObject, made: Manifest) -> None:
        """A JobSet: its Jobs are part of it, and come later."""
        body = self._submitted(one, made)
        job_set, beyond = one.read_body(body, seen.ReviewedJobSet), large.of_object("JobSet", msgspec.json.encode(body))
        decision = mutate_jobset(job_set, self._rules, beyond=beyond)
        if not _noted(made, decision):
            body = self._suspended(patched(body, decision.patch))
            made.job_sets.append(one.read_body(body, JobSet))

    def scaled(self, one: FoundObject, made: Manifest) -> None:
        """The pods of a Deployment or ReplicaSet, all of them at once."""
        kind = _SCALED[one.api_group, one.kind]
        owner = {**self._owner(one, made), "kind": kind}
        self._add_pods(one, made, owner, lambda _: {})

    def stateful(self, one: FoundObject, made: Manifest) -> None:
        """The pods of a StatefulSet, as if it made them all at once (podManagementPolicy Parallel)."""
        first = _mapping(one, one.body, "spec").get("ordinals") or {}
        start = int(first.get("start", 0)) if isinstance(first, dict) else 0
        self._add_pods(one, made, self._owner(one, made), lambda at: {"apps.kubernetes.io/pod-index": str(start + at)})
        path, templates = "spec.volumeClaimTemplates", _mapping(one, one.body, "spec").get("volumeClaimTemplates") or []
        for number, template in enumerate(templates if isinstance(templates, list) else []):
            if not isinstance(template, dict):
                raise one.fail(f"{path}[{number}]", "is no object")
            name = str(_mapping(one, template, "metadata", f"{path}[{number}].metadata").get("name", ""))
            spec = one.read_body(template.get("spec") or {}, objects.ClaimSpec)
            for at, pod in enumerate(made.pods):
                # As the StatefulSet controller names claims: template, set, ordinal.
                claim = f"{name}-{made.name}-{start + at}"
                made.claims[f"{made.namespace}/{claim}"] = spec
                others = [one for one in pod.spec.volumes or () if one.name != name]
                wanted = objects.Volume(name=name, persistent_volume_claim=objects.ClaimSource(claim_name=claim))
                pod_spec = msgspec.structs.replace(pod.spec, volumes=(*others, wanted))
                made.pods[at] = msgspec.structs.replace(pod, spec=pod_spec)

    def add_claim(self, one: FoundObject, made: Manifest) -> None:
        """A claim that pods of other objects may name."""
        made.claims[f"{made.namespace}/{made.name}"] = one.read_body(one.body.get("spec") or {}, objects.ClaimSpec)

    def template(self, one: FoundObject, made: Manifest) -> None:
        """What claims to devices are made of, for pods of other objects that name it."""
        made.templates.append(one.read_body(self._submitted(one, made), ResourceClaimTemplate))

    def device_claim(self, one: FoundObject, made: Manifest) -> None:
        """A claim to devices, for pods of other objects that name it; it has none yet, whatever its status says."""
        # An allocation in the file is the file's word; only the scheduler writes one.
        body = {**self._submitted(one, made), "status": {}}
        made.device_claims.append(one.read_body(body, ResourceClaim))

    def leaders(self, one: FoundObject, made: Manifest) -> None:
        """The groups of a LeaderWorkerSet, as if all their pods came at once."""
        if self._leaders_of(f"{made.namespace}/{made.name}") is not None:
            there = f"it is there already: `topogate explain leaderworkerset/{made.name}` says where its pods are"
            made.deny(f"{there}; to ask about a change of it, give it another name")
            return
        body = self._submitted(one, made)
        path = "spec.leaderWorkerTemplate"
        spec = _mapping(one, body, "spec")
        shape = _mapping(one, spec, "leaderWorkerTemplate", path)
        groups, size = _read_count(one, spec, "replicas", "spec"), _read_count(one, shape, "size", path, least=1)
        # Each factor is bounded by `_read_count`; their product is not.
        if groups * size > MOST_PODS:
            raise one.fail("spec.replicas", f"{groups} groups of {size} pods: expected at most {MOST_PODS} pods")
        roles = ["leaderTemplate" if shape.get("leaderTemplate") else "workerTemplate", "workerTemplate"]
        # Without a leader template leaders are made from the workers' one, as LeaderWorkerSet does.
        templates = [_mapping(one, shape, role, f"{path}.{role}") for role in roles]
        owner = {**self._owner(one, made), "kind": "StatefulSet"}  # which of them is told by the pods' labels
        decisions = [self._decide_pod(one, template, owner) for template in templates]
        asks = any(decision.patch for decision in decisions)
        for role, decision in dict(zip(roles, decisions, strict=True)).items():
            if _noted(made, decision):
                made.deny(f"{path}.{role}: {made.denied}")
                return
            if asks and not decision.patch and (size > 1 or role == roles[0]):
                need = f"neither a topology request nor the label {self._keys.queue_name}"
                made.warn(f"{path}.{role}: carries {need}: its pods are not gated and go anywhere")
        made.leader_sets.append(one.read_body(body, LeaderWorkerSet))
        for group in range(groups):
            for at in range(size):
                labels = {NAME: made.name, GROUP: str(group), WORKER_INDEX: str(at)}
                # As LeaderWorkerSet names them: the leader has no index.
                name = f"{made.name}-{group}-{at}" if at else f"{made.name}-{group}"
                template = _labelled(templates[min(at, 1)], labels)
                self._add_pod(one, made, template, name, owner, decisions[min(at, 1)])

    def pod(self, one: FoundObject, made: Manifest) -> None:
        """A bare pod, or one of a group."""
        self._add_pod(one, made, one.body, made.name, None, self._decide_pod(one, one.body))

    # --- inside ----------------------------------------------------------------------------------------------------

    def _in_default_queue(self, one: FoundObject, made: Manifest) -> FoundObject:
        """The object in the LocalQueue default where it names none, as manifests/default-queue has it."""
        meta, spec = one.body["metadata"], one.body.get("spec")
        labels = meta.get("labels") or {}
        # What a Deployment makes: by itself it is no kind of the policy.
        if one.kind in {*NAMED, "ReplicaSet"} or (made.namespace, DEFAULT_QUEUE) not in self._rules.queues:
            return one
        placed = isinstance(spec, dict) and (spec.get("nodeName") or spec.get("managedBy"))
        if placed or meta.get("ownerReferences") or not isinstance(labels, dict) or labels.get(self._keys.queue_name):
            return one
        made.warn(f'{one} names no queue: it gets LocalQueue "{DEFAULT_QUEUE}" of namespace {made.namespace}')
        labels = {**labels, self._keys.queue_name: DEFAULT_QUEUE}
        return msgspec.structs.replace(one, body={**one.body, "metadata": {**meta, "labels": labels}})

    def _handed_down(self, one: FoundObject, made: Manifest) -> FoundObject:
        """The object with what stands on it in its templates, as the webhook does it."""
        body = {**one.body, "metadata": {**one.body["metadata"], "namespace": made.namespace}}
        decision = decide_owner(body, self._rules, beyond=large.of_templates(body))
        if _noted(made, decision):
            return one
        return msgspec.structs.replace(one, body=patched(one.body, decision.patch))

    def _submitted(self, one: FoundObject, made: Manifest) -> Json:
        """The object as the API server would have it."""
        return {**one.body, "metadata": self._metadata(one.body, made.name, made.namespace, None)}

    def _suspended(self, body: Json) -> Json:
        """The body with the status that its controller gives it at once."""
        status: Json = {}
        if isinstance(body.get("spec"), dict) and body["spec"].get("suspend"):
            status["conditions"] = [{"type": "Suspended", "status": "True", "lastTransitionTime": self._created}]
        return {**body, "status": status}

    def _add_pods(self, one: FoundObject, made: Manifest, owner: Json, labels: Any) -> None:
        spec = _mapping(one, one.body, "spec")
        template = _mapping(one, spec, "template", "spec.template")
        count = _read_count(one, spec, "replicas", "spec")
        # One decision for all pods, as they have one template.
        decision = self._decide_pod(one, template, owner) if count else Decision()
        # The webhook speaks of the pod; whoever wrote this looks for it in the template.
        warnings = [re.sub(r"^(?=(metadata|spec)\.)", "spec.template.", text) for text in decision.warnings]
        decision = decision._replace(warnings=tuple(warnings))
        for at in range(count):
            if not self._add_pod(one, made, _labelled(template, labels(at)), f"{made.name}-{at}", owner, decision):
                return

    def _decide_pod(self, one: FoundObject, body: Json, owner: Json | None = None) -> Decision:
        """What the webhook decides about a pod of this template that belongs to this controller."""
        if owner is not None and isinstance(body.get("metadata", {}), dict):
            body = {**body, "metadata": {**body.get("metadata", {}), "ownerReferences": [owner]}}
        beyond = large.of_object("Pod", msgspec.json.encode(body))
        return mutate_pod(one.read_body(body, seen.ReviewedPod), self._rules, beyond=beyond)

    def _add_pod(
        self, one: FoundObject, made: Manifest, body: Json, name: str, owner: Json | None, decision: Decision
    ) -> bool:
        if _noted(made, decision):
            return False
        body = patched(body, decision.patch)
        body = {**body, "metadata": self._metadata(body, name, made.namespace, owner)}
        body["status"] = {"phase": "Pending"}
        # A pod that was copied from a cluster names the node that it had. The API server takes no gated pod with one.
        body.get("spec", {}).pop("nodeName", None) if decision.patch else None
        pod = one.read_body(body, objects.Pod)
        made.pods.append(pod)
        made.claims.update({f"{made.namespace}/{c.name}": c.template for c in claims_of(pod) if c.template is not None})
        return True

    def _metadata(self, body: Json, name: str, namespace: str, owner: Json | None) -> Json:
        meta = body.get("metadata") if isinstance(body.get("metadata"), dict) else {}
        own = {
            "name": name,
            "namespace": namespace,
            "uid": f"rehearsal-{self._next_number()}",
            "creationTimestamp": self._created,
            "resourceVersion": "1",
        }
        # Forged owners in a manifest are overwritten wherever a controller would own the pod.
        references = {"ownerReferences": [owner]} if owner is not None else {}
        return {**(meta or {}), **own, **references}

    def _owner(self, one: FoundObject, made: Manifest) -> Json:
        version, uid = one.body.get("apiVersion", ""), f"rehearsal-{self._next_number()}"
        return {"apiVersion": version, "kind": made.kind, "name": made.name, "uid": uid, "controller": True}

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers


KINDS: Final[Mapping[tuple[str, str], Any]] = {
    ("batch", "Job"): Maker.job,
    ("jobset.x-k8s.io", "JobSet"): Maker.job_set,
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): Maker.leaders,
    ("apps", "Deployment"): Maker.scaled,
    ("apps", "ReplicaSet"): Maker.scaled,
    ("apps", "StatefulSet"): Maker.stateful,
    ("", "Pod"): Maker.pod,
    ("", _CLAIM): Maker.add_claim,
    ("resource.k8s.io", _DEVICES): Maker.device_claim,
    ("resource.k8s.io", _TEMPLATE): Maker.template,
}


def patched(body: Json, patch: Iterable[Add]) -> Json:
    """The object with additions made (a JSON Patch of nothing but ``add``); the given one stays as it is."""
    # A deep copy: the given object is the template of all other pods.
    made: Json = msgspec.json.decode(msgspec.json.encode(body))
    for add in patch:
        *parents, last = pointer_keys(add.path)
        at: Any = made
        for part in parents:
            at = at[int(part)] if isinstance(at, list) else at[part]
        value = msgspec.to_builtins(add.value)
        if isinstance(at, list):
            # The webhook only ever appends to lists ("-").
            at.append(value)
        else:
            at[last] = value
    return made


def _route(cache: Cache, namespace: str, name: str) -> QueueRoute:
    """Where a local queue leads, as the webhook knows it."""
    local = cache.queues.config.local[namespace, name]
    queue = cache.queues.quotas.queues.get(local.cluster_queue)
    if queue is None:
        return QueueRoute(local.cluster_queue, None, f"its ClusterQueue {local.cluster_queue} does not exist")
    flavors = tuple(quotas.flavor for group in queue.groups for quotas in group.flavors)
    for what, stop in (("it", local.stop), (f"its ClusterQueue {queue.name}", queue.stop)):
        if stop != "None":
            return QueueRoute(queue.name, flavors, f"{what} is on hold (stopPolicy {stop})")
    return QueueRoute(queue.name, flavors)


def _noted(made: Manifest, decision: Decision) -> bool:
    """Note warnings; True where the object is refused."""
    made.warn(*decision.warnings)
    if decision.denied is not None:
        made.deny(decision.denied.message)
    return bool(made.denied)


def _mapping(one: FoundObject, within: Json, name: str, path: str = "") -> Json:
    found = within.get(name)
    if not isinstance(found, dict):
        raise one.fail(path or name, "is missing or no object")
    return found


def _read_count(one: FoundObject, within: Json, name: str, path: str, *, least: int = 0) -> int:
    found = within.get(name, 1)
    found = 1 if found is None else found
    # Not isinstance: true is an int to Python.
    if type(found) is not int or not least <= found <= MOST_PODS:
        raise one.fail(f"{path}.{name}", f"{found!r}: expected a whole number from {least} to {MOST_PODS}")
    return found


def _labelled(template: Json, labels: Mapping[str, str]) -> Json:
    meta = template.get("metadata") or {}
    return {**template, "metadata": {**meta, "labels": {**(meta.get("labels") or {}), **labels}}}


def kinds_of(passed: Sequence[str]) -> Iterator[str]:
    """What was passed over, a few by name."""
    yield from passed[:4]
    if len(passed) > len(passed[:4]):
        yield f"{len(passed) - 4} more"
