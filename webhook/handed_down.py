"""What the webhook decides about an owner that makes pods of a template: what stands on it reaches its pods.

Rules
- Its queue, priority class and time limit (labels) go into each of its templates, and replace what stands there, as in
  Kueue 0.19.2 (deployment_webhook.go, leaderworkerset_webhook.go). The webhook warns about another value there.
- Its topology request, slices and wishes (annotations) go into templates that lack them. Two that differ are refused,
  as for Jobs. Kueue reads none of them on these owners.
- A template of pods that have neither queue nor request after that gets nothing, since they are not ours.
- Controllers that hold back a LeaderWorkerSet (``admission-gated-by``) are named as for Jobs. Other owners are not held
  back, but their pods: the webhook says so. Kueue 0.19.2 reads the annotation on all of them but Deployments.
- An update hands down what it changes: the copies of what the owner said before follow, or go. A template that an
  update leaves alone is changed by nothing but labels and annotations of its owner: a change would replace its pods.
- A TrainJob says it in two places, of which its CRD drops the one that its version does not have.
- The launcher of an MPIJob is placed with its workers: a Job makes it, whose pods a queue alone does not gate.
- Nothing is remembered, and a second pass over the result changes nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import Final, NamedTuple, TypeVar

import msgspec

from crds.constants import Keys
from crds.levels import with_label_keys
from crds.owner_templates import (
    ANY,
    MANAGER,
    MOST_PLACES,
    OURS,
    OWNERS,
    Json,
    OwnerKind,
    Place,
    annotations_for_pods,
    dotted_path,
    escape_key,
    has_more_places,
    labels_for_pods,
    places_in,
)
from crds.request import (
    JOB_PATH,
    WISHES,
    ParsedRequest,
    RequestError,
    bad_wishes,
    canonical,
    contradicting_wishes,
    parse_places,
)
from kube.type_words import in_words
from webhook import advice, checks
from webhook.admission_gates import check_changed_gates, check_gates
from webhook.checks import INVALID, Problem
from webhook.mutate import (
    CREATE,
    UNTOUCHED,
    UPDATE,
    Add,
    Decision,
    MutationRules,
    check_offered,
    deny,
    names_for,
    offered,
    route_of,
)
from webhook.objects import ReviewedMetadata, ReviewedPod, annotations_of, labels_of

T = TypeVar("T")
OWNER_KINDS: Final = {(one.group, one.kind): one for one in OWNERS}
_LAUNCHER: Final = "/launcher/"  # in the pointer of its template, whatever the case


class _WrongShapeError(Exception):
    """What is no pod template, or no labels or annotations."""

    def __init__(self, path: str, error: msgspec.ValidationError) -> None:
        super().__init__(path)
        self.problem = Problem(INVALID, f"{path}: Invalid value: {in_words(str(error)).replace('`$.', '`')}")


class _Said(NamedTuple):
    """Labels and annotations: what an owner says of its pods, or a template says."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]


class _Pods(NamedTuple):
    """One place in an owner: its JSON pointer, and what stands there.

    ``kept``: its labels and annotations less ``gone``, the copies of what the owner said before and says no more.
    ``copies``: what it is to have of what the owner says. ``request``: what both ask for together. ``asks``: the update
    itself has this place ask for something.
    """

    pointer: str
    body: Json
    place: Place
    kept: _Said
    gone: _Said
    copies: _Said
    request: ParsedRequest | None
    asks: bool

    @property
    def at(self) -> str:
        """The pointer of the map with labels and annotations."""
        return "/".join((self.pointer, *self.place.below))

    @property
    def is_template(self) -> bool:
        """Whether all that its pods say stands here."""
        return self.place.form == "template"


_NOTHING: Final = _Said({}, {})


def decide_owner(
    owner: Json,
    rules: MutationRules,
    operation: str = CREATE,
    old: Json | None = None,
    beyond: Sequence[Problem] = (),
) -> Decision:
    """Decide about an owner that is created or updated (``old``: what it was).

    ``beyond``: what else is wrong with it, should its pods be ours.
    """
    kind = OWNER_KINDS.get((str(owner.get("apiVersion")).partition("/")[0], str(owner.get("kind"))))
    if kind is None:
        text = f'"{owner.get("kind")}" of "{owner.get("apiVersion")}": where its pod templates stand is not known'
        return deny([Problem(INVALID, f"kind: Unsupported value: {text}")])
    old = old if operation == UPDATE else None
    try:
        metadata = _convert(owner.get("metadata") or {}, ReviewedMetadata, "metadata")
        said, was, before = _said_in(metadata, kind, rules.keys), _NOTHING, None
        if old is not None:
            before = _convert(old.get("metadata") or {}, ReviewedMetadata, "metadata")
            was = _said_in(before, kind, rules.keys)
        # Of an owner that goes nothing matters any more, and its finalizers must be able to go.
        if metadata.deletion_timestamp:
            return UNTOUCHED
        gates = _decide_gates(kind, metadata, before, rules.keys)
        if gates.denied is not None or ((said, was) == (_NOTHING, _NOTHING) and kind.queues):
            return gates
        decision = _Handing(owner, old, kind, metadata, rules, said, was).decide(beyond)
        return decision._replace(warnings=advice.trim(iter((*gates.warnings, *decision.warnings))))
    except RequestError as error:
        return deny([Problem(INVALID, str(error))])
    except _WrongShapeError as wrong:
        return deny([wrong.problem])


def _decide_gates(kind: OwnerKind, metadata: ReviewedMetadata, before: ReviewedMetadata | None, keys: Keys) -> Decision:
    """What the controllers that an owner names as holding it back come to; ``before``: None where it is created."""
    if not kind.held:
        now, was = (annotations_of(each).get(keys.gated_by) for each in (metadata, before))
        return Decision(warnings=(advice.on_gates_of_owner(keys, kind.kind),)) if now and now != was else UNTOUCHED
    checked = check_gates(metadata, keys) if before is None else check_changed_gates(metadata, before, keys)
    problems = list(checked)
    return deny(problems) if problems else UNTOUCHED


class _Handing:
    """One decision. ``old``: None where the owner is created; ``said``, ``was``: what it says of its pods, and did."""

    def __init__(  # noqa: PLR0917
        self,
        owner: Json,
        old: Json | None,
        kind: OwnerKind,
        metadata: ReviewedMetadata,
        rules: MutationRules,
        said: _Said,
        was: _Said,
    ) -> None:
        self._owner, self._old, self._kind, self._metadata = owner, old, kind, metadata
        self._rules, self._keys = rules, rules.keys
        self._said, self._was = said, was
        self._says_otherwise = old is None or said != was

    def decide(self, beyond: Sequence[Problem]) -> Decision:
        """What happens to the owner. Raises RequestError, _WrongShapeError."""
        pods = list(self._changed_places())
        judged = [(one, self._is_ours(one)) for one in pods]
        ours, others = [one for one, is_ours in judged if is_ours], [one for one, is_ours in judged if not is_ours]
        # An owner that exists is refused a change of what it says of its pods, and never anything else.
        asks = self._says_otherwise or any(one.asks for one in pods)
        if problems := [*dict.fromkeys(self._problems(ours)), *(beyond if ours else ())]:
            return deny(problems) if asks else UNTOUCHED
        # Of pods that are not ours nothing but the copies go that are not said any more.
        written = [*ours, *(one._replace(copies=_NOTHING) for one in others)]
        patch = (*(add for one in written for add in _adds(one, self._keys)), *self._missing_entry())
        return Decision(patch, advice.trim(self._warnings(pods, ours, changed=bool(patch))))

    # --- its places ------------------------------------------------------------------------------------------------

    def _changed_places(self) -> Iterator[_Pods]:
        """The places that count: all of them, or of an update that says nothing else those that it changes."""
        for place in self._kind.places:
            before = dict(places_in(self._old, place)) if self._old is not None else {}
            for pointer, body in places_in(self._owner, place):
                same, had = before.get(pointer) == body, _NOTHING
                if same and not self._says_otherwise:
                    continue
                if pointer in before:
                    # What is stored may be wrong, and an update may mend it.
                    with suppress(_WrongShapeError):
                        had = _metadata_at(pointer, before[pointer], place)
                now = _metadata_at(pointer, body, place)
                # The whole spec of a TrainJob is no template: nothing but its two maps matters.
                if len(place.path) > 1 or now != had or self._says_otherwise:
                    yield from self._read_place(pointer, body, place, now, had)

    def _read_place(self, pointer: str, body: Json, place: Place, now: _Said, had: _Said) -> Iterator[_Pods]:
        """One place, or nothing where an update that asks for nothing finds two requests. Raises RequestError."""
        ours = zip((labels_for_pods(self._kind, self._keys), annotations_for_pods(self._keys)), now, had, strict=True)
        asks = any(has.get(key) not in {None, was.get(key)} for keys, has, was in ours for key in keys)
        was = self._copies(self._was, pointer, had) if self._was != self._said else _NOTHING
        copies = self._copies(self._said, pointer, now)
        gone = _Said(*(_stale(*four) for four in zip(had, now, was, copies, strict=True)))
        kept = _Said(*(_without(texts, stale) for texts, stale in zip(now, gone, strict=True)))
        copies = self._copies(self._said, pointer, kept)
        path = ".".join((dotted_path(pointer), *place.below, "annotations"))
        request = None
        try:
            request = parse_places([(self._said.annotations, JOB_PATH), (kept.annotations, path)], self._keys)
        except RequestError:
            # What a template says alone is judged when its pods are made.
            if self._said.annotations and (self._says_otherwise or asks):
                raise
            if self._said.annotations:
                return
        yield _Pods(pointer, body, place, kept, gone, copies, request, asks)

    def _copies(self, said: _Said, pointer: str, below: _Said) -> _Said:
        """What a place is to have of what an owner says."""
        keys, annotations = self._keys, said.annotations
        copied = {key: annotations[key] for key in (*WISHES, *keys.grouping, keys.unconstrained) if key in annotations}
        levels = (*keys.required, *keys.preferred)
        if any(key in annotations for key in levels):
            try:
                request = parse_places([(annotations, JOB_PATH)], keys)
            except RequestError:
                return _Said(said.labels, {})
            if request is not None:
                copied.pop(keys.unconstrained, None)
                copied |= [canonical(request, keys)]
        # A Job makes the launcher, and the pods of a Job are gated by a request alone.
        elif _LAUNCHER in pointer.lower() and self._kind.kind == "MPIJob" and said.labels.get(keys.queue_name):
            named = any(key in below.annotations for key in levels)
            copied |= {} if named else {keys.unconstrained: "true"}
        return _Said(said.labels, copied)

    def _is_ours(self, pods: _Pods) -> bool:
        """Whether its pods have a queue or a request. What an object inside says deeper down is not seen here."""
        return not pods.is_template or pods.request is not None or bool(checks.queue_of(self._as_pod(pods), self._keys))

    def _as_pod(self, pods: _Pods) -> ReviewedPod:
        """What the pods of a place will be, as far as queue and request go."""
        labels = {**pods.kept.labels, **self._said.labels}
        return ReviewedPod(ReviewedMetadata(None, labels, self._metadata.namespace))

    def _missing_entry(self) -> Iterator[Add]:
        """What is ours in a list that has one entry for each manager, where there is none yet. Raises RequestError."""
        for place in self._kind.places:
            if OURS not in place.path or next(places_in(self._owner, place), None) is not None:
                continue
            # A manifest that is applied again has no entry of ours, and takes away the one that was made of it.
            if not (self._says_otherwise or next(places_in(self._old or {}, place), None) is not None):
                continue
            copies = self._copies(self._said, "", _NOTHING)
            value = {name: one for name, one in (("labels", copies.labels), ("annotations", copies.annotations)) if one}
            # A request that other places complete is none in this one: a second pass would find it and refuse it.
            if value and self._said.annotations:
                parse_places([(self._said.annotations, JOB_PATH)], self._keys)
            at = place.path.index(OURS)
            *above, name = place.path[:at]
            for pointer, parent in places_in(self._owner, Place(tuple(above))) if value else ():
                yield _add_entry(f"{pointer}/{name}", parent.get(name), place.path[at + 1 :], value)

    # --- what is wrong, and what is told ---------------------------------------------------------------------------

    def _problems(self, ours: Sequence[_Pods]) -> Iterator[Problem]:
        keys, annotations = self._keys, self._said.annotations
        for place in self._kind.places if ours else ():
            # Pods of the others would run outside of the queue, and nobody would hear of it.
            if has_more_places(self._owner, place):
                path = ".".join(takewhile(lambda step: step != ANY, place.path))
                text = f"must have at most {MOST_PLACES} templates where a queue or a topology is asked for"
                yield Problem(INVALID, f"{path}: Too many: {text}")
        for one in ours if annotations else ():
            named = self._as_pod(one)
            try:
                if one.request is not None:
                    check_offered(one.request, self._rules, named, checks.queue_of(named, keys))
            except RequestError as error:
                yield Problem(INVALID, str(error))
        if (queue := self._said.labels.get(keys.queue_name)) is not None:
            yield from checks.check_queue_name(queue, keys)
        yield from (Problem(INVALID, bad.message) for bad in bad_wishes(annotations, JOB_PATH))
        for one in ours:
            path = dotted_path(one.at)
            for bad in contradicting_wishes(annotations, one.kept.annotations, f"{path}.annotations"):
                yield Problem(INVALID, bad.message)
            if one.is_template:
                if self._rules.require_queue:
                    queue = checks.queue_of(self._as_pod(one), keys)
                    yield from checks.check_has_queue(one.request is not None, queue, keys)
                template = _convert(one.body, ReviewedPod, dotted_path(one.pointer))
                yield from checks.check_template(template, keys, f"{dotted_path(one.pointer)}.")

    def _warnings(self, pods: Sequence[_Pods], ours: Sequence[_Pods], *, changed: bool) -> Iterator[str]:
        kind = self._kind.kind
        if self._says_otherwise:
            yield from self._on_owner()
            if not pods:
                yield from (advice.on_no_template(path, kind) for path in _paths(self._said))
        for one in ours:
            for key, text in one.kept.labels.items():
                if (now := self._said.labels.get(key, text)) != text:
                    yield advice.on_other_label(f"{dotted_path(one.at)}.labels[{key}]", text, now, kind)
            if self._kind.held:
                template = ReviewedPod(ReviewedMetadata(dict(one.kept.annotations)))
                yield from advice.on_gates_below(template, self._keys, f"{dotted_path(one.pointer)}.", kind)
        if len(ours) < len(pods):
            yield from (advice.on_no_request(path, self._keys) for path in _paths(self._said))
        removed = _Said(*(_without(was, now) for was, now in zip(self._was, self._said, strict=True)))
        copied = {path for one in pods for path in _paths(one.gone)}
        yield from (advice.on_gone_copy(path, kind) for path in _paths(removed) if path in copied)
        if changed and self._old is not None:
            yield advice.on_changed_template(kind, rolls=self._kind.rolls)
        asked = {one.request: self._as_pod(one) for one in ours if one.request is not None and self._said.annotations}
        for request, named in asked.items():
            level = with_label_keys(request, names_for(self._rules, named))
            yield from advice.on_level(level, offered(self._rules, named), unchecked=self._rules.flavors is None)

    def _on_owner(self) -> Iterator[str]:
        keys, owner = self._keys, ReviewedPod(self._metadata)
        if self._kind.queues:
            known = self._rules.flavors is not None
            waits = "its pods wait behind the gate"
            yield from advice.on_queue(owner, keys, route_of(owner, self._rules), waits, known=known)
            yield from advice.on_impatience(self._kind.kind, owner, keys)
            if checks.queue_of(owner, keys):
                yield from (advice.on_suspended(path, self._kind.kind) for path in _suspends(self._owner))
        elif checks.queue_of(owner, keys):
            yield advice.on_unqueued_kind(self._kind.kind, keys)
        yield from advice.on_spelling(annotations_of(self._metadata), keys, JOB_PATH)


def _suspends(owner: Json) -> Iterator[str]:
    """Where an owner says that it makes no pods: in its spec, or for Kubeflow's kinds in their run policy."""
    spec = owner.get("spec")
    policy = spec.get("runPolicy") if isinstance(spec, dict) else None
    for place, path in ((spec, "spec.suspend"), (policy, "spec.runPolicy.suspend")):
        if isinstance(place, dict) and place.get("suspend") is True:
            yield path


def _paths(said: _Said) -> list[str]:
    """Each label and annotation as a field of the owner."""
    labels = [f"metadata.labels[{key}]" for key in said.labels]
    return [*labels, *(f"{JOB_PATH}[{key}]" for key in said.annotations)]


def _said_in(metadata: ReviewedMetadata, kind: OwnerKind, keys: Keys) -> _Said:
    labels, annotations = labels_of(metadata), annotations_of(metadata)
    return _Said(
        {key: labels[key] for key in labels_for_pods(kind, keys) if key in labels},
        {key: annotations[key] for key in annotations_for_pods(keys) if key in annotations},
    )


def _metadata_at(pointer: str, body: Json, place: Place) -> _Said:
    """Raises _WrongShapeError."""
    path = ".".join((dotted_path(pointer), *place.below))
    found = body.get("metadata") if place.below else {name: body.get(name) for name in ("labels", "annotations")}
    metadata = _convert({} if found is None else found, ReviewedMetadata, path)
    return _Said(labels_of(metadata), annotations_of(metadata))


def _convert(value: object, shape: type[T], path: str) -> T:
    try:
        return msgspec.convert(value, shape)
    except msgspec.ValidationError as error:
        raise _WrongShapeError(path, error) from None


def _stale(
    had: Mapping[str, str], has: Mapping[str, str], was: Mapping[str, str], copies: Mapping[str, str]
) -> dict[str, str]:
    """Copies of what an owner says no more. ``had``, ``has``: the place before and now; ``was``: its copies before."""
    # Both times: what its author edits in the same update is the author's own word.
    return {key: text for key, text in was.items() if had.get(key) == has.get(key) == text != copies.get(key)}


def _adds(pods: _Pods, keys: Keys) -> Iterator[Add]:
    """The operations that bring a place to what it is to say."""
    has, copies, levels = pods.kept.annotations, pods.copies.annotations, (*keys.required, *keys.preferred)
    # What stands there stays, also where it is the same level in another spelling.
    named = any(key in has for key in levels)
    missing = {key: text for key, text in copies.items() if key not in has and not (named and key in levels)}
    if copies.get(keys.unconstrained) == "true":
        missing[keys.unconstrained] = "true"
    wanted = (("labels", {**pods.kept.labels, **pods.copies.labels}), ("annotations", {**has, **missing}))
    if pods.place.below and pods.body.get("metadata") is None:
        if made := {name: texts for name, texts in wanted if texts}:
            yield Add(pods.at, made)
        return
    before = ({**kept, **gone} for kept, gone in zip(pods.kept, pods.gone, strict=True))
    for (name, texts), now in zip(wanted, before, strict=True):
        if texts != now:
            at = f"{pods.at}/{name}"
            # A JSON Patch adds over a map that is there: this takes the old copies out.
            if not now or now.keys() - texts.keys():
                yield Add(at, texts)
            else:
                yield from (Add(f"{at}/{escape_key(key)}", text) for key, text in texts.items() if now.get(key) != text)


def _without(texts: Mapping[str, str], gone: Mapping[str, str]) -> dict[str, str]:
    return {key: text for key, text in texts.items() if key not in gone}


def _add_entry(pointer: str, entries: object, steps: Sequence[str], value: Json) -> Add:
    """The operation that puts a value into our entry of a list, at the first step that is missing."""
    found = [(at, one) for at, one in enumerate(entries) if isinstance(one, dict)] if isinstance(entries, list) else []
    ours = next(((at, one) for at, one in found if one.get("manager") == MANAGER), None)
    if ours is None:
        entry = {"manager": MANAGER, **_nested(steps, value)}
        return Add(f"{pointer}/-", entry) if isinstance(entries, list) else Add(pointer, [entry])
    pointer, at = f"{pointer}/{ours[0]}", ours[1]
    for number, step in enumerate(steps):
        pointer = f"{pointer}/{step}"
        if not isinstance(at.get(step), dict):
            return Add(pointer, _nested(steps[number + 1 :], value))
        at = at[step]
    raise AssertionError(f"{pointer}: it is there")


def _nested(steps: Sequence[str], value: Json) -> Json:
    for step in reversed(steps):
        value = {step: value}
    return value
