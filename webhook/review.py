"""AdmissionReview on the wire: bytes in, status and bytes out. Never raises, whatever the bytes are.

- No AdmissionReview of v1 (or v1beta1, which looks the same): 400 and a text that says what is wrong where.
- An AdmissionReview with an object whose fields have wrong types: denied, 422, with the path.
- Anything else: what `mutate` decides. The answer keeps the review's uid and apiVersion.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar, cast

import msgspec
import structlog

from crds.owner_templates import OWNERS
from kube.type_words import in_words
from webhook import large
from webhook.checks import FORBIDDEN, INVALID, Problem
from webhook.memo import DecisionMemo
from webhook.mutate import CREATE, Decision, MutationRules
from webhook.objects import ReviewedJob, ReviewedJobSet, ReviewedPod
from webhook.settings import ConfigMap, judged

log = structlog.get_logger(__name__)

T = TypeVar("T")
ALLOWED, PATCHED, DENIED, MALFORMED = "allowed", "patched", "denied", "malformed"
VERDICTS = (ALLOWED, PATCHED, DENIED, MALFORMED)
JSON_TYPE, TEXT_TYPE = b"application/json", b"text/plain; charset=utf-8"

_REASONS = {INVALID: "Invalid", FORBIDDEN: "Forbidden"}
UNFORESEEN: Final = "the review cannot be processed; see the webhook's log"


class Reply(NamedTuple):
    """An HTTP answer: status, body, its content type, and the verdict that metrics count."""

    status: int
    body: bytes
    verdict: str
    content_type: bytes = JSON_TYPE


class _Kind(msgspec.Struct, gc=False):
    kind: str = ""


class _Options(msgspec.Struct, gc=False, rename="camel"):
    field_manager: str = ""


class ReviewRequest(msgspec.Struct, Generic[T], gc=False, rename="camel"):
    """What the API server asks about. ``old_object`` is what an updated object was, ``options`` how it is written."""

    uid: str
    operation: str = ""
    kind: _Kind | None = None
    object: T | None = None
    old_object: T | None = None
    options: _Options | None = None


class Review(msgspec.Struct, Generic[T], gc=False, rename="camel"):
    """An AdmissionReview with a request."""

    api_version: Literal["admission.k8s.io/v1", "admission.k8s.io/v1beta1"]
    kind: Literal["AdmissionReview"]
    request: ReviewRequest[T]


class _Uid(msgspec.Struct, gc=False):
    uid: str


class _Envelope(msgspec.Struct, gc=False, rename="camel"):
    """A review without a look at the object in it."""

    api_version: Literal["admission.k8s.io/v1", "admission.k8s.io/v1beta1"]
    kind: Literal["AdmissionReview"]
    request: _Uid


class _Status(msgspec.Struct, gc=False):
    code: int
    message: str
    reason: str


class _Response(msgspec.Struct, gc=False, rename="camel", omit_defaults=True):
    """What follows the uid in a response."""

    allowed: bool
    patch_type: str | None = None
    patch: bytes | None = None  # msgspec writes bytes as base64, as AdmissionReview wants it
    warnings: tuple[str, ...] = ()
    status: _Status | None = None


_encode = msgspec.json.Encoder().encode
_HEADS = {
    version: b'{"apiVersion":"%b","kind":"AdmissionReview","response":{"uid":' % version.encode()
    for version in ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")
}
_decode_envelope = msgspec.json.Decoder(_Envelope).decode


class ReviewVerdict(NamedTuple):
    """A decision as it goes on the wire: all of the response after the uid."""

    verdict: str
    tail: bytes


OnObject = Callable[[DecisionMemo[ReviewVerdict], Any, str, Any, Sequence[Problem]], ReviewVerdict]
Measure = Callable[[bytes], Sequence[Problem]]
Decide = Callable[[DecisionMemo[ReviewVerdict], ReviewRequest[Any], str, Sequence[Problem]], ReviewVerdict]


class Rulebook:
    """The rules in force, and the decisions made under them so far. Make another where a rule changes."""

    def __init__(self, rules: MutationRules) -> None:
        self.rules = rules
        self.decisions = DecisionMemo(rules, _verdict)


class Reviewer:
    """Answers the reviews of its kinds. Make one with `for_jobs`, `for_jobsets`, `for_pods`, `for_owners` ...

    ``measure``: what is too large in a review of so many bytes (`webhook.large`).
    """

    def __init__(self, kinds: Sequence[str], shape: type, decide: Decide, measure: Measure) -> None:
        self._kinds = tuple(dict.fromkeys(kinds))
        self._decide = decide
        self._measure = measure
        self._decode: Callable[[bytes], Review[Any]] = msgspec.json.Decoder(Review[shape]).decode  # type: ignore[valid-type]

    def answer(self, body: bytes, rulebook: Rulebook) -> Reply:
        """The answer to one review; raises nothing."""
        try:
            return self._answer(body, rulebook)
        except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
            return self._explain(body, error)
        # A bug refuses the object: pods that pass unread have no gate, and nothing holds them back afterwards.
        except Exception:
            log.exception("review failed; it is refused", kinds=self._kinds)
            return _malformed(UNFORESEEN)

    def _answer(self, body: bytes, rulebook: Rulebook) -> Reply:
        review = self._decode(body)
        request = review.request
        # With a wrong path in the configuration Pods would be read as Jobs, whose fields are absent: nothing is gated.
        if request.kind is not None and request.kind.kind not in ("", *self._kinds):
            reviewed = f"only {', '.join(self._kinds)} {'is' if len(self._kinds) == 1 else 'are'} reviewed at this path"
            return _malformed(f'request.kind.kind: "{request.kind.kind}": {reviewed}')
        if not request.uid:
            return _malformed("request.uid: Required value")
        # A deletion has no object, and nothing to be decided.
        if request.object is None:
            return _reply(review, _UNTOUCHED)
        operation = request.operation or CREATE
        # Not on updates: an object that is there already must be able to lose its finalizers, however large it is.
        beyond = self._measure(body) if len(body) > large.LARGE_BYTES and operation == CREATE else ()
        return _reply(review, self._decide(rulebook.decisions, request, operation, beyond))

    def _explain(self, body: bytes, error: Exception) -> Reply:
        """An answer for what did not decode: a denial where at least the review around the object is whole."""
        text = f"nested too deeply: {error}" if isinstance(error, RecursionError) else in_words(str(error))
        # The review around the object is whole, so its author hears which field is wrong. A 400 would be a failed call.
        if isinstance(error, msgspec.ValidationError) and "`$.request.object" in text:
            try:
                review = _decode_envelope(body)
                if review.request.uid:
                    path = text.replace("$.request.object.", "").replace("$.request.object", "object")
                    name = self._kinds[0] if len(self._kinds) == 1 else "object"
                    return _reply(review, _denial(Problem(INVALID, f"{name}: Invalid value: {path}")))
            except (msgspec.DecodeError, RecursionError, UnicodeError):
                pass
        return _malformed(f"no AdmissionReview of admission.k8s.io/v1: {text}")


def for_jobs() -> Reviewer:
    """Reviews of Jobs."""
    return Reviewer(["Job"], ReviewedJob, _by_rules(DecisionMemo.on_job), partial(large.of_review, "Job"))


def for_jobsets() -> Reviewer:
    """Reviews of JobSets."""
    return Reviewer(["JobSet"], ReviewedJobSet, _by_rules(DecisionMemo.on_jobset), partial(large.of_review, "JobSet"))


def for_pods() -> Reviewer:
    """Reviews of Pods."""
    return Reviewer(["Pod"], ReviewedPod, _by_rules(DecisionMemo.decide_pod), partial(large.of_review, "Pod"))


def for_owners() -> Reviewer:
    """Reviews of owners that make pods of a template."""
    # As JSON: their templates stand in many places, and few owners carry anything of ours.
    return Reviewer([one.kind for one in OWNERS], dict[str, Any], _by_rules(DecisionMemo.on_owner), large.of_owner)


def for_settings(domain: str) -> Reviewer:
    """Reviews of the ConfigMap with the settings; ``domain``: of the installation."""

    def decide(
        _decisions: DecisionMemo[ReviewVerdict], request: ReviewRequest[Any], _operation: str, _beyond: object
    ) -> ReviewVerdict:
        manager = request.options.field_manager if request.options is not None else ""
        return _verdict(judged(cast("ConfigMap", request.object), request.old_object, domain, manager))

    return Reviewer(["ConfigMap"], ConfigMap, decide, lambda _: ())


def _by_rules(decide: OnObject) -> Decide:
    def decided(
        decisions: DecisionMemo[ReviewVerdict], request: ReviewRequest[Any], operation: str, beyond: Sequence[Problem]
    ) -> ReviewVerdict:
        return decide(decisions, request.object, operation, request.old_object, beyond)

    return decided


def _verdict(decision: Decision) -> ReviewVerdict:
    if decision.denied is not None:
        return _denial(decision.denied)
    if not decision.patch:
        return ReviewVerdict(ALLOWED, _tail(_Response(allowed=True, warnings=decision.warnings)))
    patch = _encode(decision.patch)
    return ReviewVerdict(PATCHED, _tail(_Response(True, "JSONPatch", patch, decision.warnings)))


def _denial(problem: Problem) -> ReviewVerdict:
    status = _Status(problem.code, problem.message, _REASONS[problem.code])
    return ReviewVerdict(DENIED, _tail(_Response(allowed=False, status=status)))


def _tail(response: _Response) -> bytes:
    """``,"allowed":...}}``: the response without its opening brace."""
    # The uid of each review goes in front of it, so that a decision that is kept is never encoded again.
    return b"," + _encode(response)[1:] + b"}"


_UNTOUCHED = _verdict(Decision())


def _reply(review: Review[Any] | _Envelope, verdict: ReviewVerdict) -> Reply:
    return Reply(200, _HEADS[review.api_version] + _encode(review.request.uid) + verdict.tail, verdict.verdict)


def _malformed(message: str) -> Reply:
    return Reply(400, f"{message}\n".encode(errors="replace"), MALFORMED, TEXT_TYPE)
