"""An API server as far as the controller needs one: objects with versions, and the history that watches replay.

Every change of an object is one commit, which tells ``judge`` before anything else can happen. What the real one would
refuse is refused: other versions and uids than expected (409), a gate that is added, a selector that is changed once
the gate is gone, a template of a Job that runs (422), pods beyond the quota of their namespace (403). Where the
admission policies are installed (`policies`), so is what they forbid.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
from support.history import policies
from support.history.loop import EPOCH, Loop

from kube import resources
from kube.resources import Resource
from ungater.jobs.leaderworkerset import GROUP as GROUP_INDEX
from ungater.jobs.leaderworkerset import REVISION

Json = dict[str, Any]
Key = tuple[str, str, str]  # (plural, namespace, name)

POD_GROUPS = Resource(
    "users", "v1", "podgroups", "PodGroup"
)  # what somebody wants who makes pods by hand: no API has it
GROUP = "kueue.x-k8s.io/pod-group-name"
ROLE = "jobset.sigs.k8s.io/replicatedjob-name"
SET_UID = "jobset.sigs.k8s.io/jobset-uid"
LEADER_SET = "simulated/leader-set"  # the uid of a pod's LeaderWorkerSet, of which real ones know the name alone
LEADER_GROUP = "LeaderGroup"  # a group of a LeaderWorkerSet, which is no object
GATE = policies.GATE
MARK = policies.MARK
QUEUE, CLASS = policies.CLAIMS[:2]
TRACKING = "batch.kubernetes.io/job-tracking"
NAMESPACE = "ns"
GRACE = 30  # seconds that a pod has to stop, where it does not say more; kubelets need less
HOSTILE = "bad"  # the namespace of a tenant who wants what is not his
CONTROLLER = policies.CONTROLLER
SERVED = {
    resource.plural: resource
    for resource in (
        resources.NAMESPACES,
        resources.NODES,
        resources.PODS,
        resources.JOBS,
        resources.JOB_SETS,
        resources.STATEFUL_SETS,
        resources.LEADER_WORKER_SETS,
        resources.CONTROLLER_REVISIONS,
        POD_GROUPS,
        resources.WORKLOADS,
        resources.RESOURCE_FLAVORS,
        resources.COHORTS,
        resources.CLUSTER_QUEUES,
        resources.LOCAL_QUEUES,
        resources.PRIORITY_CLASSES,
        resources.WORKLOAD_PRIORITY_CLASSES,
        resources.LIMIT_RANGES,
        resources.RUNTIME_CLASSES,
        resources.POD_DISRUPTION_BUDGETS,
        resources.PERSISTENT_VOLUME_CLAIMS,
        resources.PERSISTENT_VOLUMES,
        resources.STORAGE_CLASSES,
        resources.CSI_NODES,
    )
}
STATUS = {
    "pods",
    "jobs",
    "jobsets",
    "workloads",
    "cohorts",
    "clusterqueues",
    "localqueues",
    "nodes",
}  # those with a subresource status
_PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/[^/]+(?:/namespaces/(?P<namespace>[^/]+))?/(?P<plural>[a-z]+)"
    r"(?:/(?P<name>[^/]+))?(?:/(?P<sub>[a-z]+))?$"
)
encode, decode = msgspec.json.encode, msgspec.json.decode


class Refused(Exception):  # noqa: N818 - an answer
    """An answer with a status of 400 or above."""

    def __init__(self, code: int, reason: str, message: str = "") -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code = code
        self.body = encode({"kind": "Status", "code": code, "reason": reason, "message": message})


class Server:
    """See the module's rules. ``judge(key, old, new, who)`` is told of each change; ``more`` is served too."""

    def __init__(self, loop: Loop, more: Iterable[Resource] = ()) -> None:
        self.loop = loop
        self.served = SERVED | {resource.plural: resource for resource in more}
        self.objects: dict[Key, Json] = {}
        self.history: dict[str, list[tuple[int, str, bytes]]] = {plural: [] for plural in self.served}
        self.forgotten: dict[str, int] = dict.fromkeys(self.served, 0)
        self.version = 100
        self.budgets: set[str] = set()  # jobs by uid, and namespaces, whose pods a PodDisruptionBudget protects
        self.policies = False  # whether the admission policies are installed
        self.most_pods: dict[str, int] = {}  # ResourceQuotas, by namespace
        self.events: dict[str, list[Json]] = {}  # by uid of what they regard
        self.admit: Callable[[str, Json, str], Json] = lambda _plural, obj, _who: obj  # as what is made is stored
        self.judge: Callable[[Key, Json | None, Json | None, str], None] = lambda *_: None
        self.wake: Callable[[str], None] = lambda _: None
        self.commits = 0  # of anything but Events
        self.ours = 0  # commits by the controller that change what somebody gets

    def serve(self, name: str, resource: Resource) -> None:
        """One more kind, whose plural may be another's too, by this name."""
        self.served = {**self.served, name: resource}
        self.history[name], self.forgotten[name] = [], 0

    # --- reading -------------------------------------------------------------------------------------------------

    def all(self, plural: str) -> Iterator[Json]:
        """The objects of a kind, in the order of their names."""
        return (self.objects[key] for key in sorted(key for key in self.objects if key[0] == plural))

    def within(self, plural: str, namespace: str) -> Iterator[Json]:
        """Those of one namespace."""
        return (self.objects[key] for key in sorted(key for key in self.objects if key[:2] == (plural, namespace)))

    def get(self, plural: str, name: str, namespace: str = "") -> Json | None:
        """One object; not to be changed."""
        return self.objects.get((plural, namespace, name))

    def with_condition(self, status: Json, kind: str, value: str) -> Json:
        """The status with a condition, as a controller of jobs sets it."""
        conditions = status.get("conditions") or []
        if any(found["type"] == kind and found["status"] == value for found in conditions):
            return status
        made = {"type": kind, "status": value, "lastTransitionTime": self.now(), "reason": kind, "message": ""}
        return {**status, "conditions": [*(found for found in conditions if found["type"] != kind), made]}

    def wake_up(self, plural: str) -> None:
        """Have everybody look again."""
        self.wake(plural)

    def now(self, later: float = 0.0) -> str:
        """The time as objects have it, or that after so many seconds."""
        return datetime.fromtimestamp(EPOCH + self.loop.now + later, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    # --- changing ------------------------------------------------------------------------------------------------

    def create(self, plural: str, obj: Json, who: str) -> Json:
        """A new object. Raises Refused."""
        obj = self.admit(plural, obj, who)
        meta = obj["metadata"]
        key = plural, meta.get("namespace", ""), meta["name"]
        if key in self.objects:
            raise Refused(409, "AlreadyExists", str(key))
        if self.policies:
            self._allow(plural, {}, obj, who)
        if plural == "pods" and key[1] in self.most_pods:
            there = sum(not ended(pod) for pod in self.all("pods") if pod["metadata"]["namespace"] == key[1])
            if there >= self.most_pods[key[1]]:
                raise Refused(403, "Forbidden", "exceeded quota: pods")
        self.version += 1
        uid = f"{'x' if key[1] == HOSTILE else 'u'}{self.version}"
        if plural == POD_GROUPS.plural:
            uid = group_uid(obj, meta["name"])
        made = {**obj, "metadata": {**meta, "uid": uid, "generation": 1, "creationTimestamp": self.now()}}
        return self._commit(key, None, made, who)

    def change(self, obj: Json, mutate: Callable[[Json], None], who: str, sub: str = "") -> Json:
        """Change a copy of an object, then store it. Raises Refused."""
        new = decode(encode(obj))
        mutate(new)
        return self.store(obj, new, who, sub)

    def store(self, old: Json, new: Json, who: str, sub: str = "") -> Json:
        """Another version of an object; nothing where it is the same. Raises Refused."""
        plural = plural_of(old)
        if sub == "status":
            new = {**old, "status": new.get("status", {})}
        elif plural in STATUS and who == CONTROLLER:
            new = {**new, "status": old.get("status", {})}
        if new == old:
            return old
        if self.policies:
            self._allow(plural, old, new, who)
        if plural == "pods":
            _pod_changes(old, new)
        if plural == "jobs":
            _job_changes(old, new)
        if plural == "jobsets":
            _jobset_changes(old, new)
        if old.get("spec") != new.get("spec"):
            new["metadata"]["generation"] = old["metadata"].get("generation", 1) + 1
        return self._commit(_key(old), old, new, who)

    @staticmethod
    def _allow(plural: str, old: Json, new: Json, who: str) -> None:
        if (why := policies.forbids(plural, old, new, who)) is not None:
            raise Refused(403, "Forbidden", why)

    def delete(self, obj: Json, who: str, *, grace: int | None = None) -> None:
        """Delete an object: a pod on a node terminates first, and finalizers hold up the end."""
        meta = obj["metadata"]
        pod = plural_of(obj) == "pods"
        instant = not pod or grace == 0 or not obj["spec"].get("nodeName") or ended(obj)
        if instant and not meta.get("finalizers"):
            self._commit(_key(obj), obj, None, who)
            return
        left = 0
        if not instant:
            left = obj["spec"].get("terminationGracePeriodSeconds", GRACE) if grace is None else grace
            left = min(left, meta.get("deletionGracePeriodSeconds", left), 10**9)
        if meta.get("deletionTimestamp") and meta.get("deletionGracePeriodSeconds") == left:
            return
        more = {"deletionTimestamp": self.now(left), "deletionGracePeriodSeconds": left}
        if left > GRACE:
            self.loop.call_later(left + 1, self.wake_up, "pods")  # its kubelet ends it then
        self._commit(_key(obj), obj, {**obj, "metadata": {**meta, **more}}, who)

    def _commit(self, key: Key, old: Json | None, new: Json | None, who: str) -> Json:
        if new is not None:
            meta = new["metadata"]
            if (
                meta.get("deletionTimestamp")
                and not meta.get("finalizers")
                and meta.get("deletionGracePeriodSeconds") == 0
            ):
                new = None
        self.version += 1
        self.commits += 1
        self.ours += who == CONTROLLER and _matters(key, old, new)
        stored = new if new is not None else old
        stored = {**stored, "metadata": {**stored["metadata"], "resourceVersion": str(self.version)}}
        if new is None:
            self.objects.pop(key, None)
        else:
            self.objects[key] = stored
        kind = "DELETED" if new is None else "ADDED" if old is None else "MODIFIED"
        self.history[key[0]].append((self.version, kind, encode({"type": kind, "object": stored}) + b"\n"))
        self.judge(key, old, stored if new is not None else None, who)
        self.wake(key[0])
        return stored

    # --- as a client calls it --------------------------------------------------------------------------------------

    def _discovered(self, path: str) -> bytes:
        """Which groups and versions there are, or which resources of one."""
        if path == "/apis":
            versions = [{"groupVersion": each.api_version} for each in self.served.values() if each.group]
            return encode({"groups": [{"versions": versions}]})
        there = [{"name": each.plural} for each in self.served.values() if each.root == path]
        if not there:
            raise Refused(404, "NotFound", path)
        return encode({"resources": there})

    def call(self, method: str, path: str, body: bytes | None, content_type: str) -> bytes:  # noqa: PLR0911
        """The body of the answer to a call of the controller. Raises Refused."""
        found = _PATH.match(path)
        if found is None:
            return self._discovered(path)
        plural, namespace = stored_as(found["group"], found["plural"]), found["namespace"] or ""
        if plural == "events":
            return self._event(method, body)
        if plural not in self.served:
            raise Refused(404, "NotFound", path)
        if found["name"] is None:
            if method == "POST":
                obj = decode(body)
                return encode(self.create(plural, obj, CONTROLLER))
            items = [obj for obj in self.all(plural) if not namespace or obj["metadata"]["namespace"] == namespace]
            return encode({"metadata": {"resourceVersion": str(self.version)}, "items": items})
        obj = self.objects.get((plural, namespace, found["name"]))
        if obj is None:
            raise Refused(404, "NotFound", path)
        if method == "GET":
            return encode(obj)
        if found["sub"] == "eviction":
            self._evict(obj, decode(body))
            return b"{}"
        if method == "DELETE":
            options = decode(body) if body else {}
            _expect(obj, options.get("preconditions") or {})
            self.delete(obj, CONTROLLER, grace=options.get("gracePeriodSeconds"))
            return b"{}"
        if method != "PATCH":
            raise Refused(405, "MethodNotAllowed", method)
        return encode(self.store(obj, _patched(obj, decode(body), content_type), CONTROLLER, found["sub"] or ""))

    def _evict(self, pod: Json, eviction: Json) -> None:
        options = eviction.get("deleteOptions") or {}
        _expect(pod, options.get("preconditions") or {})
        if (
            {owner_of(pod), pod["metadata"]["namespace"]} & self.budgets
            and not ended(pod)
            and not pod["metadata"].get("deletionTimestamp")
        ):
            raise Refused(429, "TooManyRequests", "Cannot evict pod as it would violate the pod's disruption budget.")
        if not options.get("dryRun"):
            self.delete(pod, CONTROLLER)

    def _event(self, method: str, body: bytes | None) -> bytes:
        if method == "POST":
            event = decode(body)
            self.events.setdefault(event["regarding"].get("uid", ""), []).append(event)
        return b"{}"

    def forget_history(self) -> None:
        """Compact: a watch that is opened from before now is told 410."""
        for plural in self.forgotten:
            self.forgotten[plural] = self.version


def owner_of(obj: Json) -> str:
    """The uid of whoever is placed with it: its controlling owner, but for what is of a JobSet or a pod group."""
    meta = obj["metadata"]
    labels = meta.get("labels") or {}
    if whole := (meta.get("annotations") or {}).get(LEADER_SET):
        return _within(obj, f"{whole}/{labels.get(GROUP_INDEX, '')}")
    if obj.get("kind") == "Workload" and meta["name"].startswith("leaderworkerset-"):
        return f"{parent_of(obj)}/{meta['name'].split('-')[2]}"
    if SET_UID in labels and parent_of(obj):  # a JobSet's pods are of its Jobs, whoever labels a pod of a group so
        return _within(obj, str(labels[SET_UID]))
    if name := labels.get(GROUP):
        return group_uid(obj, name)
    if obj.get("kind") == "Workload" and meta["name"].startswith("podgroup-"):
        return group_uid(obj, meta["name"].removeprefix("podgroup-").rpartition("-")[0])
    return parent_of(obj)


def group_uid(obj: Json, name: str) -> str:
    """What stands for the uid of a pod group, in the namespace of an object."""
    return f"group-{obj['metadata'].get('namespace', '')}/{name}"


def named_by(obj: Json) -> list[str]:
    """The uids of all whom an object names as its owners; those of StatefulSets of LeaderWorkerSets are left out."""
    if (obj["metadata"].get("annotations") or {}).get(LEADER_SET):
        return [parent_of(obj)]
    found = obj["metadata"].get("ownerReferences") or ()
    return [_within(obj, ref["uid"]) for ref in found if not ref["uid"].startswith("set-of-")]


def _within(obj: Json, uid: str) -> str:
    """A uid that an object names; nobody's where the owner is in another namespace, as whoever forges it has it."""
    foreign = uid and uid.startswith("x") != (obj["metadata"].get("namespace") == HOSTILE)
    return f"forged {uid}" if foreign else uid


def parent_of(obj: Json) -> str:
    """The uid of its controlling owner; of the pods of a LeaderWorkerSet, that one's."""
    if whole := (obj["metadata"].get("annotations") or {}).get(LEADER_SET):
        return _within(obj, str(whole))
    found = obj["metadata"].get("ownerReferences") or ()
    return _within(obj, next((ref["uid"] for ref in found if ref.get("controller")), ""))


def owners(server: "Server", namespace: str = NAMESPACE) -> Iterator[Json]:
    """Whoever has pods that are to be placed: Jobs, JobSets, StatefulSets, groups of LeaderWorkerSets, pod groups."""
    yield from (job for job in server.within("jobs", namespace) if not parent_of(job))
    yield from server.within("jobsets", namespace)
    yield from server.within("statefulsets", namespace)
    for whole in server.within("leaderworkersets", namespace):
        yield from groups_of(server, whole)
    yield from server.within(POD_GROUPS.plural, namespace)


def groups_of(server: "Server", whole: Json) -> list[Json]:
    """The groups of a LeaderWorkerSet, each like an object."""
    meta = whole["metadata"]
    groups = [(group, _made_as(server, whole, group)) for group in range(whole["spec"]["replicas"])]
    return [
        {
            "kind": LEADER_GROUP,
            "metadata": {**meta, "name": f"{meta['name']}-{group}", "uid": f"{meta['uid']}/{group}"},
            "spec": {
                **templates,
                "replicas": templates["size"],
                "template": templates["workerTemplate"],
                "waits": whole["spec"]["waits"],
            },
        }
        for group, templates in groups
    ]


def _made_as(server: "Server", whole: Json, group: int) -> Json:
    """The templates of one group: those that its leader was made from, or what they are now where there is none."""
    meta = whole["metadata"]
    leader = server.get("pods", f"{meta['name']}-{group}", meta["namespace"])
    its = leader is not None and parent_of(leader) == meta["uid"] and not leader["metadata"].get("deletionTimestamp")
    named = (leader["metadata"].get("labels") or {}).get(REVISION, "") if leader is not None and its else ""
    kept = server.get("controllerrevisions", revision_name(whole, named), meta["namespace"])
    spec: Json = whole["spec"] if kept is None else kept["data"]["spec"]
    templates: Json = spec["leaderWorkerTemplate"]
    return templates


def revision_name(whole: Json, revision: str) -> str:
    """Of the ControllerRevision that keeps what a LeaderWorkerSet was."""
    return f"{whole['metadata']['uid']}-{revision}-1"


def is_set(owner: Json) -> bool:
    """Whether it is a StatefulSet, a group of a LeaderWorkerSet or a pod group, and no Job or JobSet."""
    return owner["kind"] in {"StatefulSet", LEADER_GROUP, POD_GROUPS.kind}


def is_group(owner: Json) -> bool:
    """Whether it is a pod group."""
    return owner["kind"] == POD_GROUPS.kind


def is_led(owner: Json) -> bool:
    """Whether it is a group of a LeaderWorkerSet."""
    return owner["kind"] == LEADER_GROUP


def is_jobset(owner: Json) -> bool:
    """Whether it is a JobSet."""
    return owner["kind"] == resources.JOB_SETS.kind


def labels_of(owner: Json) -> Json:
    """Where an owner says its queue: one that cannot be suspended on its pods."""
    told = owner["spec"]["template"] if is_set(owner) else owner
    return told["metadata"].get("labels") or {}


def ended(pod: Json) -> bool:
    return pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}


def refused(pod: Json) -> bool:
    """Whether a pod was let go, and kube-scheduler last said that no node takes it."""
    said = (each["status"] for each in pod["status"].get("conditions") or () if each["type"] == "PodScheduled")
    return not gated(pod) and not pod["spec"].get("nodeName") and "False" in said


def gated(pod: Json) -> bool:
    return any(gate["name"] == GATE for gate in pod["spec"].get("schedulingGates") or ())


def over(job: Json) -> bool:
    return any(is_true(job.get("status"), kind) for kind in ("Complete", "Completed", "Failed"))


def is_true(status: Json | None, kind: str) -> bool:
    """Whether a condition holds."""
    conditions = (status or {}).get("conditions") or ()
    return any(found["type"] == kind and found["status"] == "True" for found in conditions)


def plural_of(obj: Json) -> str:
    """What its kind is called in paths, or `stored_as` it is."""
    group, _, _ = obj.get("apiVersion", "").rpartition("/")
    return stored_as(group, _PLURALS[obj["kind"]])


def stored_as(group: str | None, plural: str) -> str:
    """The name of a kind here: Kueue's Workloads have our plural."""
    return "kueueworkloads" if (group, plural) == ("kueue.x-k8s.io", "workloads") else plural


def kind_at(path: str) -> str:
    """The kind that a path names."""
    found = _PATH.match(path)
    return stored_as(found["group"], found["plural"]) if found is not None else path.rpartition("/")[2]


_PLURALS = {resource.kind: resource.plural for resource in SERVED.values()}


def _key(obj: Json) -> Key:
    meta = obj["metadata"]
    return plural_of(obj), meta.get("namespace", ""), meta["name"]


def describe(resource: Resource) -> Json:
    """The head of an object of this kind."""
    return {"apiVersion": resource.api_version, "kind": resource.kind}


def make_object(resource: Any, name: str, spec: Json | None = None, **metadata: Any) -> Json:
    """An object to be created."""
    body = {**describe(resource), "metadata": {"name": name, **metadata}}
    return body if spec is None else {**body, "spec": spec}


def container(cpu: int) -> Json:
    """One that asks for so much."""
    return {"name": "c", "image": "i", "resources": {"requests": {"cpu": str(cpu)}}}


def is_hostile(uid: str) -> bool:
    """Whether this is what an owner of the hostile tenant is known by, or its namespace."""
    return uid == HOSTILE or uid.startswith(("x", f"group-{HOSTILE}/"))


def _matters(key: Key, old: Json | None, new: Json | None) -> bool:
    if key[0] in {"cohorts", "clusterqueues", "localqueues"}:
        return False
    if key[0] == "workloads" and old is not None and new is None and is_true(old.get("status"), "Finished"):
        return False  # of an owner that needs nothing any more
    if key[0] != "workloads" or old is None or new is None:
        return True
    held = [[(each.get("status") or {}).get(name) for name in ("admission", "nomination")] for each in (old, new)]
    return held[0] != held[1] or old["spec"] != new["spec"]


def _expect(obj: Json, wanted: Json) -> None:
    for name in ("uid", "resourceVersion"):
        if wanted.get(name) and wanted[name] != obj["metadata"][name]:
            raise Refused(409, "Conflict", f"{name} is {obj['metadata'][name]}, not {wanted[name]}")


def _patched(obj: Json, body: Any, content_type: str) -> Json:
    new: Json = decode(encode(obj))
    if content_type == "application/json-patch+json":
        return _json_patched(new, body)
    _expect(obj, body.get("metadata") or {})
    if content_type == "application/strategic-merge-patch+json":
        meta, wanted = new["metadata"], body["metadata"]
        assert set(wanted) <= {"uid", "finalizers", "$deleteFromPrimitiveList/finalizers"}, wanted
        taken = wanted.get("$deleteFromPrimitiveList/finalizers", ())
        kept = [name for name in meta.get("finalizers", ()) if name not in taken]
        added = [name for name in wanted.get("finalizers", ()) if name not in kept]
        if added and meta.get("deletionTimestamp"):
            raise Refused(422, "Invalid", "no finalizer can be added to what is being deleted")
        meta["finalizers"] = kept + added
        return new
    return merge_patch(new, body)


def merge_patch(into: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    into = into if isinstance(into, dict) else {}
    for name, value in patch.items():
        if value is None:
            into.pop(name, None)
        else:
            into[name] = merge_patch(into.get(name), value)
    return into


def _json_patched(new: Json, operations: list[Json]) -> Json:
    """RFC 6902, with changes of maps, and of elements of lists that are there."""
    for operation in operations:
        try:
            _operate(new, operation)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise Refused(422, "Invalid", f"{operation['path']} is not there: {error!r}") from None
    return new


def _operate(new: Json, operation: Json) -> None:
    *path, last = (part.replace("~1", "/").replace("~0", "~") for part in operation["path"][1:].split("/"))
    at: Any = new
    for part in path:
        at = at[int(part)] if isinstance(at, list) else at[part]
    if operation["op"] == "test":
        if (at[int(last)] if isinstance(at, list) else at.get(last)) != operation["value"]:
            raise Refused(422, "Invalid", f"test of {operation['path']} failed")
    elif operation["op"] == "remove":
        del at[last]
    elif isinstance(at, list):
        at[int(last)] = operation["value"]
    else:
        at[last] = operation["value"]


def _pod_changes(old: Json, new: Json) -> None:
    before, after = ({gate["name"] for gate in pod["spec"].get("schedulingGates") or ()} for pod in (old, new))
    if after - before:
        raise Refused(422, "Invalid", "a gate cannot be added")
    selectors = [pod["spec"].get("nodeSelector") or {} for pod in (old, new)]
    affinities = [pod["spec"].get("affinity") for pod in (old, new)]
    if (not before and (selectors[0] != selectors[1] or affinities[0] != affinities[1])) or any(
        selectors[1].get(name) != value for name, value in selectors[0].items()
    ):
        raise Refused(422, "Invalid", "the node selector can only be narrowed, and only while the pod is gated")
    kept = new["status"].get("nominatedNodeName")
    if old["spec"].get("nodeName") and kept and kept != old["status"].get("nominatedNodeName"):
        raise Refused(422, "Invalid", "status.nominatedNodeName: may not be set on pods that are already bound")  # 1.35
    if old["spec"].get("nodeName") != new["spec"].get("nodeName") and (old["spec"].get("nodeName") or after):
        raise Refused(422, "Invalid", "a pod is bound once, and not while it is gated")


def _job_changes(old: Json, new: Json) -> None:
    spec, now = old["spec"], new["spec"]
    if spec["template"] == now["template"]:
        return
    status = old.get("status") or {}
    if not spec.get("suspend") or status.get("startTime"):
        raise Refused(422, "Invalid", "spec.template: field is immutable")


def _jobset_changes(old: Json, new: Json) -> None:
    """The pod templates are what a suspended one may change."""
    spec, now = old["spec"], new["spec"]
    if spec.get("replicatedJobs") != now.get("replicatedJobs") and not (spec.get("suspend") or now.get("suspend")):
        raise Refused(422, "Invalid", "spec.replicatedJobs: field is immutable")
