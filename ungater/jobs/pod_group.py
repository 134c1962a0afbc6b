"""Pods that no Job owns, as owners: pod groups, bare pods, and the pods of any other controller.

Rules
- Pods with the annotation or label ``<domain>/pod-group-name`` are one workload by namespace and group; else the pods
  of one controlling owner are (StatefulSet, ReplicaSet of a Deployment, LeaderWorkerSet, a Kubeflow or MPI job, ...);
  else those of one PodGroup of Kubernetes itself are; else a pod is a workload of its own. Pods of Jobs belong to the
  Job, and DaemonSet pods have their nodes already.
- Nothing needs to be read but the pods, so any controller will do whose pods carry request and gate. How many there
  will be is told by ``<domain>/pod-group-total-count``, or by the owner itself (`ungater.jobs.replica_counts`); without
  that, those that are there count, and more go beside them.
- A rank is read from the label that the pods' controller sets (`RANK_LABELS`). It counts from 0; where nobody
  tells how many there will be, from the lowest one.
- Where the pods' controller makes several kinds of pods (`ungater.jobs.kinds`), each kind is a pod set. Those who tell
  how many pods there will be in all are one workload, placed when all are there; else each kind is a workload by
  itself.
- The pods of a group with a total that differ in their specs, and whose annotation ``<domain>/role-hash`` does not tell
  kinds, are told apart by their specs, as in Kueue. Alike they are one pod set, ``main``; and so are those of a group
  that was placed as one, before a pod came that differs. One that was let go is of the kind that it was let go as.
- Pods of one pod set are alike. Those that wait behind the gate tell what is asked for; of pods that were let
  go, what we added to them is taken off.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from hashlib import blake2b

import msgspec
from msgspec.structs import replace

from crds.constants import ADMITTED_QUOTA, Keys
from crds.names import kind_prefix, listed_names, workload_name
from crds.request import WISHES, ParsedRequest, RequestError, group_named, parse_request, parse_wish, pods_in_all
from engine.reasons import Reason
from kube.objects import (
    Affinity,
    NodeAffinity,
    NodeSelector,
    ObjectMeta,
    Pod,
    PodSpec,
    PodTemplate,
    ResourceRequirements,
    controller_of,
    is_true,
)
from kube.pods.requests import pod_requests
from kube.pods.templates import template_of
from kube.workloads import PodSetCount
from ungater.jobs.job import few_kinds, longest, one_queue
from ungater.jobs.kinds import rule_of
from ungater.jobs.leaderworkerset import group_key
from ungater.jobs.replica_counts import ReplicaCounts, requires_domain
from ungater.model.job_view import MAIN, SUSPENDABLE, JobView, PodSetView, controlled_by, identity, is_job, told_apart
from ungater.model.pod_slots import finished, is_gated, rank_of

POD, GROUP = "Pod", "PodGroup"
GONE = "Gone"  # none of its pods is left
NOT_SERVED = SUSPENDABLE | {("DaemonSet", "apps/v1"), ("Node", "v1")}  # a JobSet makes Jobs, and no pods
GROUPS, NATIVE = ":group/", ":podgroup/"  # no id of an owner begins so: a namespace has no colon in its name
MEMBERS = 16  # pods of a group that own its Workload
_ordered = msgspec.json.Encoder(order="deterministic").encode
_WRITTEN = ("kubectl.kubernetes.io/last-applied-configuration", ADMITTED_QUOTA)


def owner_key(pod: Pod, keys: Keys) -> str:
    """What the pods of one owner share (`JobView.id`): namespace and uid of controller or bare pod, or group."""
    controller, namespace = controller_of(pod.metadata), pod.metadata.namespace
    # Before the group label: a pod of a Job is of the Job, whatever labels its user gives it.
    if controller is not None and is_job(controller):
        return identity(namespace, controller.uid)
    group = group_named(pod.metadata.labels, pod.metadata.annotations, keys)
    if group:
        return f"{GROUPS}{namespace}/{group}"
    if controller is None:
        native = pod.spec.pod_group  # kube-scheduler takes them together, so they are placed together
        return f"{NATIVE}{namespace}/{native}" if native else identity(namespace, pod.metadata.uid)
    if (of_leader := group_key(pod)) != "":
        return of_leader
    role = role_of(pod, keys)
    # Without a total nobody can say when all kinds are there, so none waits for another.
    alone = role != MAIN and keys.pod_group_total not in (pod.metadata.annotations or {})
    return _owner_id(pod) + (f"/{role}" if alone else "")


def _owner_id(pod: Pod) -> str:
    """The id of its controller, or of a bare pod."""
    controller, namespace = controller_of(pod.metadata), pod.metadata.namespace
    if controller is None:
        return identity(namespace, pod.metadata.uid)
    return controlled_by(namespace, controller.kind, controller.api_version, controller.uid)


def role_of(pod: Pod, keys: Keys) -> str:
    """The name of a pod's pod set, as the pod tells it."""
    annotations = pod.metadata.annotations or {}
    if keys.role_hash in annotations:
        return annotations[keys.role_hash]
    rule = rule_of(pod)
    return (rule.role(pod) if rule is not None else "") or MAIN


def served(pod: Pod, keys: Keys) -> bool:
    """Whether the pod is ours to place without a Job: it waits behind our gate, or was let go by us."""
    return not _of_others(pod) and (is_gated(pod, keys.gate) or keys.workload in (pod.metadata.annotations or {}))


def _of_others(pod: Pod) -> bool:
    """Whether it is by its controller that a pod is served, or is not: it may name the uid of another kind's owner."""
    controller = controller_of(pod.metadata)
    return controller is not None and (controller.kind, controller.api_version) in NOT_SERVED


def of_pods(workload: ObjectMeta) -> bool:
    """Whether a Workload was made for pods that no Job owns; by its metadata."""
    controller = controller_of(workload)
    if controller is None:
        return bool(workload.owner_references) and workload.name.startswith(kind_prefix(GROUP))
    suspendable = (controller.kind, controller.api_version) in SUSPENDABLE
    return not suspendable and workload.name.startswith(kind_prefix(controller.kind))


def owner_of_pods(  # noqa: PLR0917  (what there is of it, and what was)
    key: str,
    pods: Iterable[Pod],
    keys: Keys,
    before: JobView | None = None,
    stored: Mapping[str, int] | None = None,
    told: ReplicaCounts | None = None,
    *,
    workload: str = "",
) -> JobView:
    """The neutral view of the pods of one owner. ``before``: the view of an earlier moment, when there were pods.

    ``stored``: how many pods each pod set of its Workload has, where that is admitted. ``told``: what the owner tells.
    ``workload``: the name of its Workload, where that is not the usual one.
    """
    own = (pod for pod in pods if not _of_others(pod))
    # The oldest first: where pods disagree, one that may run already tells the owner, the labels and the queue.
    found = sorted(own, key=lambda pod: (pod.metadata.creation_timestamp or "", pod.metadata.name))
    known = told is not None and bool(told.roles(found))
    if not found or (told is not None and not known and before is not None):
        return _gone(key, before)
    kind, api_version, name, uid = _identity(key, found[0])
    total, wrong = _total(found, keys) if kind != POD else (0, None)  # a pod is one pod, whatever it says
    told = told if known else None  # it tells nothing of pods of other kinds
    service = (
        told if told is not None and told.has_one_kind and not total and requires_domain(found[-1], keys) else None
    )
    told = told if told is not None and not told.has_one_kind else None
    if told is not None:
        kind, api_version, name, uid = told.kind, told.api_version, told.name, told.uid
        total, wrong = told.replicas.total, None
    telling = found if total else found[:1]  # with no total, they are one kind
    role_in = _role_in(told, keys, shaped=key.startswith(GROUPS) and _differ_in_shape(telling, keys, before, stored))
    roles = told.roles(found) if told is not None else sorted({role_in(pod) for pod in telling})
    roles, many = few_kinds(roles, before)
    kinds = bool(total) and roles != [MAIN]  # the total is of all kinds together
    alone = roles[0] if key == f"{_owner_id(found[0])}/{roles[0]}" else ""
    usual = workload_name(kind, f"{name}-{alone}" if alone else name, told_apart(key))
    workload = before.workload if before is not None else workload or usual
    # A pod that was let go for an earlier workload of this key runs on by that one, and tells nothing of this.
    ours = [pod for pod in found if is_gated(pod, keys.gate) or mark_of(pod, keys) in {None, workload}]
    found = ours or found
    alive = [pod for pod in ours if not finished(pod)]
    pod_sets, unlike = _pod_sets(found, roles, total, told, keys, before, stored or {}, role_in)
    if service is not None:
        # As many as it tells: one that ended is made again, so none is ever done.
        count, first = service.replicas.total, service.replicas.first
        before_first = ((0, first - 1),) if first else ()
        pod_sets = [replace(one, count=count, full=count, done=before_first) for one in pod_sets]
    labels = found[0].metadata.labels or {}
    (queue, apart), (most, error) = _queue(found, keys), longest(labels, keys)
    return JobView(
        kind=kind,
        api_version=api_version,
        namespace=found[0].metadata.namespace,
        name=name,
        uid=uid,
        known_as=key,
        part=alone,
        created=before.created if before is not None else found[0].metadata.creation_timestamp or "",
        pod_sets=tuple(pod_sets),
        wrong=wrong or many or unlike or apart or error,
        gated=True,
        over=(told.over if told is not None else "") or _end_of_group(kind, alive, found, total),
        outcome=f"all pods of {kind} {name} have finished",
        queue=queue,
        priority_class=pod_sets[0].template.spec.priority_class_name,
        workload_class=labels.get(keys.priority_class, ""),
        most_execution=most,
        ready=sum(is_true(pod.status.conditions, "Ready") for pod in alive),
        workload=workload,
        open_ended=not total and kind != POD and service is None,
        scales=service is not None,
        follows=service.follows if service is not None else (),
        members=_members(kind, found, before),
        role=role_in if kinds else role_main,
        in_order=any(one.replicas.late for one in (told, service) if one is not None),
        kinds=kinds,
        gated_by=_gates(alive, keys),
    )


def _gates(alive: Iterable[Pod], keys: Keys) -> str:
    """Which controllers hold the pods back: all that one of them names."""
    said = {text for pod in alive if (text := (pod.metadata.annotations or {}).get(keys.gated_by))}
    if len(said) < 2:
        return next(iter(said), "")
    return ",".join(sorted({name for text in said for name in listed_names(text)}))


def _gone(key: str, before: JobView | None) -> JobView:
    """The view of an owner none of whose pods is there any more."""
    if before is None:
        raise AssertionError(f"{key}: no pods")
    return replace(before, over=GONE, outcome=f"no pod of {before.kind} {before.name} is left")


def _role_in(told: ReplicaCounts | None, keys: Keys, *, shaped: bool) -> Callable[[Pod], str]:
    """Who tells of which kind a pod is: its owner, or itself; ``shaped``: by its spec where it says nothing."""
    if told is not None:
        return told.role
    return partial(_role_by_shape if shaped else role_of, keys=keys)


def _role_by_shape(pod: Pod, keys: Keys) -> str:
    """The name of a pod's pod set in a group of several shapes."""
    annotations = pod.metadata.annotations or {}
    if keys.role_hash in annotations:
        return annotations[keys.role_hash]
    # Our patch changed the spec of one that was let go; it names the pod set that it was let go for.
    if not is_gated(pod, keys.gate) and (given := annotations.get(keys.pod_set)):
        return given
    return blake2b(_ordered(_spec_shape(pod, keys)), digest_size=4).hexdigest()


def _differ_in_shape(
    telling: Sequence[Pod], keys: Keys, before: JobView | None, stored: Mapping[str, int] | None
) -> bool:
    """Whether the pods of a group are told apart by their specs."""
    if stored:
        return MAIN not in stored
    # Kinds that are known stay, also while pods of one kind alone are there.
    if before is not None and before.kinds and all(one.name != MAIN for one in before.pod_sets):
        return True
    silent = [pod for pod in telling if keys.role_hash not in (pod.metadata.annotations or {})]
    waiting = [pod for pod in silent if is_gated(pod, keys.gate)]
    given = {(pod.metadata.annotations or {}).get(keys.pod_set, MAIN) for pod in silent if mark_of(pod, keys)}
    if given and not waiting:
        return MAIN not in given
    first = _spec_shape(waiting[0], keys) if waiting else ()
    return MAIN not in given and (bool(given) or any(_spec_shape(pod, keys) != first for pod in waiting[1:]))


def _spec_shape(pod: Pod, keys: Keys) -> tuple[object, ...]:
    """What pods of one kind have in common, requests included: Kueue 0.19.2, ``SpecShape`` in pkg/util/pod/pod.go."""
    spec = pod.spec
    ports = [one.ports for one in (*(spec.init_containers or ()), *(spec.containers or ()))]
    places = spec.node_selector, spec.affinity, spec.tolerations, spec.topology_spread_constraints
    ranked = spec.priority, spec.priority_class_name, spec.runtime_class_name
    return (*_shared_request(pod, keys), ports, *places, *ranked, spec.resource_claims)


def _pod_sets(  # noqa: PLR0917  (what there is of it, and what was)
    found: list[Pod],
    roles: Sequence[str],
    total: int,
    told: ReplicaCounts | None,
    keys: Keys,
    before: JobView | None,
    stored: Mapping[str, int],
    role_in: Callable[[Pod], str],
) -> tuple[list[PodSetView], RequestError | None]:
    """Its pods by role, and what is wrong with them."""
    kinds, launcher = bool(total) and roles != [MAIN], told.launcher if told is not None else None
    made: list[PodSetView] = []
    wrong: RequestError | None = None
    by_role: dict[str, list[Pod]] = {}
    # Each pod is asked once: to tell its kind by its spec takes as long as all else that is done here with it.
    for pod in found if kinds else ():
        by_role.setdefault(role_in(pod), []).append(pod)
    for role in roles:
        members = by_role.get(role, []) if kinds else found
        if (pod_set := _declared_pod_set(role, members, keys, 0 if kinds else total, before, launcher)) is not None:
            made.append(pod_set[0])
            wrong = wrong or pod_set[1]
    if not kinds:
        return made, wrong
    by_owner = told.complete(made, found, placed=bool(stored)) if told is not None else None
    made, missing = by_owner or _complete(made, total, before, stored)
    if stored and wrong is None and missing is None:
        made = _as_placed(made, stored, told, before)
    return made, wrong or missing


def _declared_pod_set(  # noqa: PLR0917  (what there is of it, and what was)
    role: str, members: list[Pod], keys: Keys, total: int, before: JobView | None, launcher: PodSetView | None
) -> tuple[PodSetView, RequestError | None] | None:
    """A pod set as its pods tell it, and what is wrong; None where all of them were let go for another workload."""
    if not members:
        return (launcher, None) if launcher is not None else None
    try:
        return _pod_set(role, members, keys, total, before), None
    except RequestError as error:
        wrong = error
    # It cannot be served: then it is what its first pod says.
    first = members[0]
    try:
        return _pod_set(role, [first], keys, 0, before), wrong
    except RequestError:  # what it asks for is no request at all
        count, gated = 0 if finished(first) else 1, [first] if is_gated(first, keys.gate) else []
        return PodSetView(role, count, count, *_template([first], gated, keys, None)), wrong


def mark_of(pod: Pod, keys: Keys) -> str | None:
    """The workload that a pod was let go for; None where it was not."""
    return (pod.metadata.annotations or {}).get(keys.workload)


def role_main(_: Pod) -> str:
    """The pod set of pods that are all alike."""
    return MAIN


def _pod_set(role: str, pods: Sequence[Pod], keys: Keys, total: int, before: JobView | None) -> PodSetView:
    """Pods that are alike as a pod set. Raises RequestError where they are not."""
    alive = [pod for pod in pods if not finished(pod)]
    gated = [pod for pod in alive if is_gated(pod, keys.gate)]
    known = next((one for one in before.pod_sets if one.name == role), None) if before is not None else None
    # A pod that has ended takes nothing any more: by what it asked for, pods that were resized to less would keep that.
    template, raw = _template(alive or pods, gated, keys, known)
    request, wishes = _request(gated or alive or pods, keys)
    done = sum(pod.status.phase == "Succeeded" for pod in pods)
    count = max(total - done, 0) if total else len(alive)
    ranks = [rank for pod in pods if (rank := rank_of(pod)) is not None]
    # A StatefulSet may begin its ordinals above 0: the ranks below count as done.
    lowest = 0 if total else min(ranks, default=0)
    done_before = ((0, lowest - 1),) if lowest else ()
    return PodSetView(role, count, total or count, template, raw, done_before, request=request, wishes=wishes)


def _complete(
    pod_sets: list[PodSetView], total: int, before: JobView | None, stored: Mapping[str, int]
) -> tuple[list[PodSetView], RequestError | None]:
    """How many pods each pod set has is known once all are there, and stays so: pods that are there tell one kind."""
    # Not where it was one kind till now: a pod came that differs, and there are several.
    known = before if before is not None and before.kinds and before.full >= total else None
    # Nor where a kind that it was placed by had no pod when it was first seen: none of that kind could come again.
    if known is not None and stored.keys() <= {one.name for one in known.pod_sets}:
        # Not as pods are there now: a pod that went would else shrink the kind that it was of.
        fulls = {one.name: one.full for one in known.pod_sets}
        seen = {one.name: one for one in pod_sets}
        return [
            replace(seen.get(one.name, one), count=fulls[one.name], full=fulls[one.name]) for one in known.pod_sets
        ], None
    # Whatever total pods tell that came later: it was placed by these.
    if stored and all(one.name in stored for one in pod_sets):
        return [replace(one, count=stored[one.name], full=stored[one.name]) for one in pod_sets], None
    there = sum(one.count for one in pod_sets)
    if there >= total:
        return pod_sets, None
    text = f"{there} of {total} pods are there; they are placed together when all are"
    return pod_sets, RequestError(Reason.PENDING, "metadata.annotations", str(total), text)


def _as_placed(
    pod_sets: list[PodSetView], stored: Mapping[str, int], told: ReplicaCounts | None, before: JobView | None
) -> list[PodSetView]:
    """Kinds of which it was placed stay, also while no pod of one is there: one may be made again."""
    known = {one.name: one for one in before.pod_sets} if before is not None else {}
    counts = told.replicas.counts if told is not None else stored  # an owner may make no pods of a kind any more
    lacking = (known.keys() & stored.keys() & counts.keys()) - {one.name for one in pod_sets}
    added = [replace(known[name], count=counts[name], full=counts[name]) for name in lacking]
    return sorted([*pod_sets, *added], key=lambda one: one.name)


def kind_as_stored(stored: PodSetCount, keys: Keys) -> PodSetView | None:
    """A kind of which no pod was seen, as its Workload has it; None where that cannot be read."""
    try:
        template = template_of(stored)
        request, wishes = _request([template], keys)
        pod_requests(template.spec)
    except (ValueError, msgspec.MsgspecError):
        return None
    raw = msgspec.json.encode(template)  # as of a pod, so that it stays the same when one comes
    return PodSetView(stored.name, stored.count, stored.count, template, raw, request=request, wishes=wishes)


def _queue(pods: Sequence[Pod], keys: Keys) -> tuple[str, RequestError | None]:
    """The queue that the pods name; where they name several that of the first, which may run already, and that."""
    named = [pod.metadata.labels or {} for pod in pods]
    wrong = one_queue(named, keys)
    return next(
        filter(None, (each.get(keys.queue_name) for each in (named if wrong is None else named[:1]))), ""
    ), wrong


def _identity(key: str, pod: Pod) -> tuple[str, str, str, str]:
    """Kind, API version, name and uid of the owner."""
    if key.startswith((GROUPS, NATIVE)):
        return GROUP, "v1", key.rsplit("/", 1)[1], ""
    controller = controller_of(pod.metadata)
    if controller is None:
        return POD, "v1", pod.metadata.name, pod.metadata.uid
    return controller.kind, controller.api_version, controller.name, controller.uid


def _members(kind: str, pods: Sequence[Pod], before: JobView | None) -> tuple[tuple[str, str], ...]:
    """Name and uid of the pods that a group's Workload belongs to; others have an owner of their own."""
    if kind != GROUP:
        return ()
    there = {pod.metadata.uid: pod.metadata.name for pod in pods}  # one of pods that are all gone is collected at once
    # Owners that are there stay: each change of the list costs a write.
    known = [one for one in before.members if one[1] in there] if before is not None else []
    others = [(name, uid) for uid, name in there.items() if (name, uid) not in known]
    return (*known, *others[: MEMBERS - len(known)])


def _end_of_group(kind: str, alive: Sequence[Pod], found: Sequence[Pod], total: int) -> str:
    """Why it needs no slots any more. A controller makes other pods for those that ended."""
    if alive:
        return ""
    done = sum(pod.status.phase == "Succeeded" for pod in found)
    if kind == POD or (total and done >= total):
        return "Complete" if done else "Failed"
    return "" if total else GONE


def _total(pods: Sequence[Pod], keys: Keys) -> tuple[int, RequestError | None]:
    """How many pods there will be; 0 where nobody says."""
    for pod in pods:
        text = (pod.metadata.annotations or {}).get(keys.pod_group_total)
        if text is None:
            continue
        if (total := pods_in_all(text)) is not None:
            return total, None
        field = f"metadata.annotations[{keys.pod_group_total}]"
        message = f'pod {pod.metadata.name}: {field}: Invalid value: "{text}": expected a whole number above 0'
        return 0, RequestError(Reason.INVALID_REQUEST, field, text, message)
    return 0, None


def _request(telling: Sequence[Pod | PodTemplate], keys: Keys) -> tuple[ParsedRequest | None, dict[str, str]]:
    """What the pods ask for. Raises RequestError where they differ or cannot be served."""
    first, *others = telling
    for other in others:
        if _shared_request(other, keys) != _shared_request(first, keys):
            text = (
                f"pods {first.metadata.name} and {other.metadata.name} are one workload and differ in what they ask "
                f"for: make them alike, give each kind its own {keys.role_hash} and all of them {keys.pod_group_total} "
                "(annotations), or give them different groups"
            )
            raise RequestError(Reason.INVALID_REQUEST, "spec", other.metadata.name, text)
    annotations = first.metadata.annotations or {}
    request = parse_request(annotations, keys)
    parse_wish(annotations)
    return request, {name: annotations[name] for name in WISHES if name in annotations}


def _shared_request(pod: Pod | PodTemplate, keys: Keys) -> tuple[object, ...]:
    """What must be the same in all pods of a workload."""
    annotations, spec = pod.metadata.annotations or {}, pod.spec
    said = {key: annotations[key] for key in (*keys.requests, *WISHES) if key in annotations}
    containers = [one.name for one in (*(spec.init_containers or ()), *(spec.containers or ()))]
    if not is_gated(pod, keys.gate):  # one that was let go may have been resized since
        return said, containers, spec.overhead, spec.pod_group
    return said, containers, _resources(spec), spec.resources, spec.overhead, spec.pod_group


def _template(
    pods: Sequence[Pod], gated: Sequence[Pod], keys: Keys, before: PodSetView | None
) -> tuple[PodTemplate, bytes]:
    """The template of the pods: of the newest that waits, else the one that was seen before, else made anew.

    ``pods``: the pods that run or wait; all of them if every pod has ended. The template that was seen before counts
    only while one of them asks for as much.
    """
    if not gated and before is not None:
        resources = _resources(before.template.spec)
        if any(_resources(pod.spec) == resources for pod in pods):
            return before.template, before.raw
    pod = gated[-1] if gated else pods[-1]
    meta = pod.metadata
    annotations = {key: text for key, text in (meta.annotations or {}).items() if key not in (keys.workload, *_WRITTEN)}
    spec = msgspec.structs.replace(pod.spec, node_name="", scheduling_gates=None, volumes=None)  # those differ
    if not is_gated(pod, keys.gate):
        # Our patch was merged into its node selector: what its user wrote there cannot be told from what was added.
        spec = msgspec.structs.replace(spec, node_selector=None, affinity=_anywhere(spec.affinity))
    template = PodTemplate(metadata=ObjectMeta(labels=meta.labels, annotations=annotations, cut=meta.cut), spec=spec)
    # The same object and bytes again, so that the view and its fingerprint do not change with each pod.
    if before is not None and before.template == template:
        return before.template, before.raw
    return template, msgspec.json.encode(template)


def _resources(spec: PodSpec) -> list[ResourceRequirements | None]:
    return [one.resources for one in (*(spec.init_containers or ()), *(spec.containers or ()))]


def _anywhere(affinity: Affinity | None) -> Affinity | None:
    """The affinity without the node's name, which letting a pod go adds."""
    node = affinity.node_affinity if affinity is not None else None
    required = node.required_during_scheduling_ignored_during_execution if node is not None else None
    if affinity is None or required is None:
        return affinity
    terms = tuple(msgspec.structs.replace(term, match_fields=None) for term in required.node_selector_terms or ())
    kept = NodeSelector(node_selector_terms=tuple(term for term in terms if term.match_expressions))
    again = NodeAffinity(required_during_scheduling_ignored_during_execution=kept) if kept.node_selector_terms else None
    return msgspec.structs.replace(affinity, node_affinity=again)
