"""What the webhook decides about a Job or a Pod. Plain functions: object and rules in, patch or denial out.

Rules
- Only what is missing is added, so a second pass over the result gives an empty patch.
- A Job's request is stamped into its pod template in the canonical spelling; what the user wrote stays. So are its
  slices, and the wishes that stand on the Job (``topogate.dev/numa-policy`` and its like); without a request these have
  no effect.
- A Job with a queue is born suspended. Without a request it asks for no level: it gets the unconstrained one, so that
  its pods are gated, and go where the flavor that it is admitted in has room.
- So has a pod with a queue that no Job owns: it waits behind the gate.
- A pod that carries a request never goes on without our gate: either it has it already, or gets it, or is refused.
- The level that its spec.scheduling names is compared with the request, and is to be a level as well. It is no request
  by itself: kube-scheduler honours it for Jobs that are not ours.
- A suspended Job may ask for something else: the copies in its template follow. One that is not is refused that.
- A Job that exists is refused a change of its request or queue, and of those that hold it back, never anything else:
  status updates and finalizers pass. A pod template that loses the gate, as one of a suspended Job can, gets it back.
- A Job that another controller manages (``spec.managedBy``) is left to it.
- Nothing is remembered and nothing is written, so a dry run differs in nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import msgspec

from crds.constants import JOB_CONTROLLER, Keys
from crds.levels import NO_NAMES, LevelNames, check_level, with_label_keys
from crds.native_groups import JOB_SCHEDULING, agreed
from crds.owner_templates import escape_key
from crds.request import (
    JOB_PATH,
    TEMPLATE_PATH,
    WISHES,
    ParsedRequest,
    RequestError,
    canonical,
    parse_job_request,
    parse_request,
)
from crds.slices import Place
from engine.model import Policy
from webhook import advice, checks
from webhook.admission_gates import check_changed_gates, check_gates
from webhook.changed_mind import stale_copies, still_asked, without_annotations
from webhook.checks import INVALID, Flavors, Problem, QueueRoute, Routes
from webhook.objects import (
    Gate,
    ReviewedJob,
    ReviewedJobSet,
    ReviewedPod,
    ReviewedPodSpec,
    annotations_of,
    is_of_a_job,
    is_suspended,
    labels_of,
)

MAIN = "main"
CREATE, UPDATE = "CREATE", "UPDATE"
MAX_MESSAGE = 4096

_TEMPLATE = "spec.template."
_TEMPLATE_POINTER = "/spec/template"


class MutationRules(msgspec.Struct, frozen=True):
    """What a decision depends on beside the object. ``flavors`` None: neither they nor the queues are known yet.

    ``require_queue``: whoever asks for a topology has to name a queue.
    """

    keys: Keys
    flavors: Flavors | None
    queues: Routes = msgspec.field(default_factory=dict)
    require_queue: bool = False
    names: LevelNames = NO_NAMES  # by which levels may be asked for


class Add(msgspec.Struct, frozen=True, gc=False, tag_field="op", tag="add"):
    """One operation of a JSON Patch; we only ever add."""

    path: str
    value: str | bool | list[Gate] | Gate | dict[str, Any] | list[dict[str, Any]]


class Decision(NamedTuple):
    """What happens to the object: ``denied`` (nothing else then counts), or the patch (empty: left as it is)."""

    patch: tuple[Add, ...] = ()
    warnings: tuple[str, ...] = ()
    denied: Problem | None = None


UNTOUCHED = Decision()
_NO_TEMPLATE = ReviewedPod()
_NO_WISHES: Mapping[str, str] = {}


def mutate_job(
    job: ReviewedJob,
    rules: MutationRules,
    operation: str = CREATE,
    old: ReviewedJob | None = None,
    beyond: Sequence[Problem] = (),
) -> Decision:
    """Decide about a Job that is created or updated (``old``: what it was).

    ``beyond``: what else is wrong with it, should it be ours.
    """
    if (manager := other_manager(job, JOB_CONTROLLER)) is not None:
        return Decision(warnings=advice.trim(iter((advice.on_manager(manager, "Job"),))))
    if operation != UPDATE:
        return _decide_job(job, rules, operation, old, beyond)
    late = list(check_changed_gates(job.metadata, old.metadata if old is not None else None, rules.keys))
    if late or old is None or not _request_changed(old, job, rules.keys):
        return deny(late) if late else _scale_job(job, old, rules.keys)
    was, now, template = _places_above_template(old), _places_above_template(job), _template(job)
    copies = stale_copies(was, now, (_template(old), template), rules.keys)
    # Both states count: where this update resumes the Job, pods are made at once of the template as it is.
    if copies and not (is_suspended(old) and is_suspended(job)):
        return deny([cannot_change(next(iter(copies.values())), "Job")])
    # Decided without the old copies, which would contradict what is asked for now.
    bare = job
    if copies and job.spec is not None:
        spec = msgspec.structs.replace(job.spec, template=without_annotations(template, copies))
        bare = msgspec.structs.replace(job, spec=spec)
    decision = _decide_job(bare, rules, operation, old, beyond)
    if decision.denied:
        return decision
    if copies:
        # A JSON Patch adds over a map that is there: this takes the old copies out, and the stamps come after it.
        reset = Add(f"{_TEMPLATE_POINTER}/metadata/annotations", annotations_of(_template(bare).metadata))
        decision = decision._replace(patch=(reset, *decision.patch))
    if left := still_asked(was, now, template, rules.keys):
        told = advice.on_taken_away(*left, rules.keys, "Job", suspended=is_suspended(job))
        decision = decision._replace(warnings=advice.trim(iter((told, *decision.warnings))))
    left_queue = advice.on_left_queue(old, job, rules.keys, "Job")
    return decision._replace(warnings=advice.trim(chain(left_queue, decision.warnings)))


def cannot_change(field: str, kind: str) -> Problem:
    """That something else is asked for too late."""
    return Problem(
        INVALID,
        f"{field}: Forbidden: it cannot change while the {kind} is not suspended, as pods may have been created by the "
        f"old value: delete the {kind} and create it again",
    )


def _decide_job(
    job: ReviewedJob, rules: MutationRules, operation: str, old: ReviewedJob | None, beyond: Sequence[Problem]
) -> Decision:
    template, queue = _template(job), checks.queue_of(job, rules.keys)
    try:
        request = parse_job_request(annotations_of(job.metadata), annotations_of(template.metadata), rules.keys)
        if request is None and not queue:
            # Left alone, whatever else it says; its author is told of what then has no effect.
            told = chain(advice.on_lone_wishes(job, rules.keys), _spelling(job, rules.keys))
            return Decision(warnings=advice.trim(told))
        if request is not None:
            check_offered(request, rules, job, queue)
        scheduling = job.spec.scheduling if job.spec is not None else None
        if scheduling is not None and scheduling.level:
            meant = with_label_keys(request, names_for(rules, job)) if request is not None else None
            both = agreed(meant, scheduling.level, JOB_SCHEDULING)
            check_offered(both, rules, job, queue)
    except RequestError as error:
        return deny([Problem(INVALID, str(error))])
    problems = [
        *checks.check_queue(job, old, rules.keys),
        *(check_gates(job.metadata, rules.keys) if operation == CREATE else ()),
        *checks.check_wishes(job, template),
        *checks.check_template(template, rules.keys, _TEMPLATE),
        *checks.check_pod_set(template, rules.keys, _TEMPLATE, MAIN),
        *(checks.check_slices(job, request) if request is not None else ()),
        *(checks.check_has_queue(request is not None, queue, rules.keys) if rules.require_queue else ()),
        *beyond,
    ]
    if problems:
        return deny(problems)
    wanted = request or ParsedRequest(Policy.UNCONSTRAINED, None, checks.queue_path(rules.keys))
    return _admit_job(job, wanted, rules, operation, old)


def _scale_job(job: ReviewedJob, old: ReviewedJob | None, keys: Keys) -> Decision:
    """A Job whose request stays may have more or fewer pods, but of slices whole ones."""
    if old is None or old.spec is None or job.spec is None:
        return UNTOUCHED
    if (old.spec.parallelism, old.spec.completions) == (job.spec.parallelism, job.spec.completions):
        return UNTOUCHED
    try:
        request = parse_job_request(annotations_of(job.metadata), annotations_of(_template(job).metadata), keys)
    except RequestError:
        return UNTOUCHED  # it came while the webhook was away; its Workload says what is wrong
    problems = list(checks.check_slices(job, request)) if request is not None else []
    return deny(problems) if problems else UNTOUCHED


def mutate_pod(
    pod: ReviewedPod,
    rules: MutationRules,
    operation: str = CREATE,
    old: ReviewedPod | None = None,  # noqa: ARG001
    beyond: Sequence[Problem] = (),
) -> Decision:
    """Decide about a Pod that is created. ``beyond``: what else is wrong with it, should it be ours.

    One of a Job that has our gate came through that, and was checked then: it is not checked again, lest a flavor that
    is gone keeps a running Job from replacing its pods. The controller says so on the Workload.
    """
    if operation != CREATE:
        return UNTOUCHED
    annotations = annotations_of(pod.metadata)
    of_job = is_of_a_job(pod.metadata)
    checked = of_job and has_gate(pod.spec, rules.keys)
    try:
        request = parse_request(annotations, rules.keys)
        queue = labels_of(pod.metadata).get(rules.keys.queue_name)
        if request is None and queue is None:
            return UNTOUCHED
        request = request or ParsedRequest(Policy.UNCONSTRAINED, None, checks.queue_path(rules.keys))
        # A forged owner gains nothing here: the pod has the gate, and the controller compares owners by their uid.
        if not checked:
            check_offered(request, rules, pod, queue or "")
    except RequestError as error:
        return deny([Problem(INVALID, str(error))])
    alone = () if checked else (*checks.check_group(pod, rules.keys), *check_gates(pod.metadata, rules.keys))
    queued = checks.check_has_queue(not of_job, queue, rules.keys) if rules.require_queue else ()
    if problems := [*checks.check_template(pod, rules.keys, ""), *alone, *queued, *beyond]:
        return deny(problems)
    patch = tuple(stamp(pod, request, rules.keys, ""))
    if checked:
        return Decision(patch) if patch else UNTOUCHED
    warnings = chain(
        advice.on_level(
            with_label_keys(request, names_for(rules, pod)), offered(rules, pod), unchecked=rules.flavors is None
        ),
        advice.on_template(pod, ""),
        advice.on_wishes(pod),
        advice.on_lone_total(pod, rules.keys),
        advice.on_spelling(annotations, rules.keys, JOB_PATH),
    )
    return Decision(patch, advice.trim(warnings))


def _admit_job(
    job: ReviewedJob, request: ParsedRequest, rules: MutationRules, operation: str, old: ReviewedJob | None
) -> Decision:
    template, keys = _template(job), rules.keys
    # What goes with the request and stands on the Job: its pods carry it too.
    annotations = annotations_of(job.metadata)
    handed_down = {key: annotations[key] for key in (*WISHES, *keys.grouping) if key in annotations}
    patch = tuple(stamp(template, request, keys, _TEMPLATE_POINTER, handed_down))
    if operation == CREATE:
        # A Job with a queue waits for its turn before it makes pods.
        if checks.queue_of(job, keys) and not is_suspended(job):
            patch = (Add("/spec/suspend", value=True), *patch)
    # The API server refuses a change of this template, and its author would hear of fields that nobody wrote.
    elif patch and not (is_suspended(old) and is_suspended(job)):
        return Decision(warnings=advice.trim(iter((advice.on_late_request(request.field, "Job"),))))
    warnings = chain(
        advice.on_queue(job, keys, route_of(job, rules), "the Job waits, suspended,", known=rules.flavors is not None),
        advice.on_counts(job, with_label_keys(request, names_for(rules, job))),
        advice.on_level(
            with_label_keys(request, names_for(rules, job)), offered(rules, job), unchecked=rules.flavors is None
        ),
        advice.on_template(template, _TEMPLATE),
        advice.on_gates_below(template, keys, _TEMPLATE, "Job"),
        advice.on_wishes(template, job),
        _spelling(job, keys),
    )
    return Decision(patch, advice.trim(warnings))


def other_manager(job: ReviewedJob | ReviewedJobSet, own: str) -> str | None:
    """Which controller manages it, where that is not the one that comes with its kind (``own``)."""
    manager = job.spec.managed_by if job.spec is not None else None
    return manager if manager != own else None


def route_of(job: ReviewedJob | ReviewedPod, rules: MutationRules) -> QueueRoute | None:
    """Where the queue of a Job or pod leads; None where it has none, or there is none of that name."""
    namespace = (job.metadata.namespace if job.metadata is not None else None) or ""
    return rules.queues.get((namespace, checks.queue_of(job, rules.keys)))


def names_for(rules: MutationRules, job: ReviewedJob | ReviewedPod) -> LevelNames:
    """By which a Job or pod may ask for levels: where its queue is known, what the flavors of that call so."""
    return rules.names.from_flavors(offered(rules, job))


def offered(rules: MutationRules, job: ReviewedJob | ReviewedPod) -> Flavors:
    """The flavors with a topology that a Job or pod may be given: those of its queue, where that is known."""
    route, flavors = route_of(job, rules), rules.flavors or {}
    if route is None or route.flavors is None:
        return flavors
    return {name: flavors[name] for name in route.flavors if name in flavors}


def check_offered(request: ParsedRequest, rules: MutationRules, job: ReviewedJob | ReviewedPod, queue: str) -> None:
    """The level is one of a flavor that it may be given. Who asks for none may be given a flavor without any."""
    # Before the flavors are known nothing is refused: the pods are gated, and the controller judges the level later.
    if rules.flavors is None or (queue and request.policy is Policy.UNCONSTRAINED):
        return
    route = route_of(job, rules)
    known = route is not None and route.flavors is not None
    of = f" of ClusterQueue {route.cluster_queue}" if route and known else ""
    names = names_for(rules, job)
    check_level(with_label_keys(request, names), offered(rules, job), of=of, names=names)


def deny(problems: Sequence[Problem]) -> Decision:
    """The object is refused for these reasons."""
    message = "; ".join(problem.message for problem in problems)
    if len(message) > MAX_MESSAGE:
        message = f"{message[: MAX_MESSAGE - 3]}..."
    return Decision(denied=Problem(max(problem.code for problem in problems), message))


def _spelling(job: ReviewedJob, keys: Keys) -> Iterator[str]:
    yield from advice.on_spelling(annotations_of(job.metadata), keys, JOB_PATH)
    yield from advice.on_spelling(annotations_of(_template(job).metadata), keys, TEMPLATE_PATH)


def stamp(  # noqa: PLR0917
    pod: ReviewedPod,
    request: ParsedRequest,
    keys: Keys,
    at: str,
    wishes: Mapping[str, str] = _NO_WISHES,
    pod_set: str = MAIN,
) -> Iterator[Add]:
    """Gate and annotations, where they are missing, in the pod (template) whose JSON pointer is ``at``."""
    key, value = canonical(request, keys)
    present = annotations_of(pod.metadata)
    wanted = {key: value, keys.pod_set: pod_set, **wishes}
    missing = {name: text for name, text in wanted.items() if name not in present}
    if key == keys.unconstrained and present.get(key) == "false":  # said by the Job or its queue: true
        missing[key] = value
    if missing:
        # The least that adds them: parents are made only where there are none.
        if pod.metadata is None:
            yield Add(f"{at}/metadata", {"annotations": missing})
        elif not pod.metadata.annotations:
            yield Add(f"{at}/metadata/annotations", missing)
        else:
            # One by one: an add of the whole map would replace what is in it.
            for name, text in missing.items():
                yield Add(f"{at}/metadata/annotations/{escape_key(name)}", text)
    if not has_gate(pod.spec, keys):
        gate = Gate(keys.gate)
        # Beside the others: gates of other controllers must stay.
        if pod.spec is not None and pod.spec.scheduling_gates:
            yield Add(f"{at}/spec/schedulingGates/-", gate)
        else:
            yield Add(f"{at}/spec/schedulingGates", [gate])


def has_gate(spec: ReviewedPodSpec | None, keys: Keys) -> bool:
    """Whether a pod (template) carries our gate."""
    gates = spec.scheduling_gates if spec is not None else None
    return any(gate.name == keys.gate for gate in gates or ())


def _template(job: ReviewedJob) -> ReviewedPod:
    """The pod template; an empty one, which `checks` refuse, where there is none."""
    return (job.spec.template if job.spec is not None else None) or _NO_TEMPLATE


def _places_above_template(job: ReviewedJob) -> tuple[Place, ...]:
    """What a Job says of its pods above their template."""
    return ((annotations_of(job.metadata), JOB_PATH),)


def _request_changed(old: ReviewedJob, new: ReviewedJob, keys: Keys) -> bool:
    """Whether an update touches request or queue, or takes the gate. Of a Job that goes nothing matters any more."""
    # Its finalizers have to go, whatever is wrong with it.
    if new.metadata is not None and new.metadata.deletion_timestamp:
        return False
    # A tenant may take the gate from the template of a suspended Job: decided again, it comes back.
    if has_gate(_template(old).spec, keys) and not has_gate(_template(new).spec, keys):
        return True
    return _requests(old, keys) != _requests(new, keys) or checks.queue_of(old, keys) != checks.queue_of(new, keys)


def _requests(job: ReviewedJob, keys: Keys) -> tuple[dict[str, str], ...]:
    places = (annotations_of(job.metadata), annotations_of(_template(job).metadata))
    return tuple({key: place[key] for key in (*keys.requests, *WISHES) if key in place} for place in places)
