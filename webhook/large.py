"""What is looked at in large objects alone: whether their pod templates keep the limits (`kube.pods.limits`).

For that a whole pod template is read, which costs more than the rest of a review; and what keeps a review small keeps
the limits too, or nearly so. The controller judges all of them.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, Final

import msgspec

from crds.owner_templates import OWNERS, Json, dotted_path, places_in
from kube.objects import PodTemplate, Struct
from kube.pods.limits import over_limits
from webhook.checks import INVALID, Problem

# An ordinary review has half of this.
LARGE_BYTES: Final = 8 * 1024
MOST_TOLD: Final = 8


class _JobSpec(Struct, frozen=True):
    template: PodTemplate = PodTemplate()


class _Job(Struct, frozen=True):
    spec: _JobSpec = _JobSpec()


class _ReplicatedJob(Struct, frozen=True):
    template: _Job = _Job()


class _JobSetSpec(Struct, frozen=True):
    replicated_jobs: tuple[_ReplicatedJob, ...] | None = None


class _JobSet(Struct, frozen=True):
    spec: _JobSetSpec = _JobSetSpec()


class _Request(Struct, frozen=True):
    object: msgspec.Raw = msgspec.Raw(b"{}")


class _Review(Struct, frozen=True):
    request: _Request = _Request()


Templates = Iterator[tuple[PodTemplate, str]]  # with their place in the object


def _of_pod(pod: PodTemplate) -> Templates:
    yield pod, ""


def _of_job(job: _Job) -> Templates:
    yield job.spec.template, "spec.template."


def _of_jobset(jobset: _JobSet) -> Templates:
    for at, job in enumerate(jobset.spec.replicated_jobs or ()):
        yield job.template.spec.template, f"spec.replicatedJobs[{at}].template.spec.template."


_KINDS: Mapping[str, tuple[Callable[[bytes | msgspec.Raw], Any], Callable[[Any], Templates]]] = {
    "Pod": (msgspec.json.Decoder(PodTemplate).decode, _of_pod),
    "Job": (msgspec.json.Decoder(_Job).decode, _of_job),
    "JobSet": (msgspec.json.Decoder(_JobSet).decode, _of_jobset),
}
_decode_review = msgspec.json.Decoder(_Review).decode


def of_review(kind: str, body: bytes) -> tuple[Problem, ...]:
    """The limits that the object of a review (as it came) does not keep."""
    try:
        return of_object(kind, _decode_review(body).request.object)
    except (msgspec.DecodeError, RecursionError):
        return ()


def of_owner(body: bytes) -> tuple[Problem, ...]:
    """The limits that the pod templates of a reviewed owner (`crds.owner_templates`) do not keep."""
    try:
        return of_templates(msgspec.json.decode(_decode_review(body).request.object, type=dict))
    except (msgspec.DecodeError, RecursionError):
        return ()


def of_templates(owner: Json) -> tuple[Problem, ...]:
    """The same of an owner that is read already. What cannot be read is refused by others."""
    kinds = [one for one in OWNERS if one.kind == owner.get("kind")]
    places = {place for one in kinds for place in one.places if place.form == "template"}
    problems: list[Problem] = []
    for pointer, body in (found for place in sorted(places) for found in places_in(owner, place)):
        if len(problems) >= MOST_TOLD:
            break
        with suppress(msgspec.ValidationError, RecursionError):
            template = msgspec.convert(body, PodTemplate)
            found = over_limits(template, f"{dotted_path(pointer)}.")
            problems += (Problem(INVALID, one.message) for one in islice(found, MOST_TOLD - len(problems)))
    return tuple(problems)


def of_object(kind: str, body: bytes | msgspec.Raw) -> tuple[Problem, ...]:
    """The limits that an object (JSON) does not keep. What cannot be read is refused by others."""
    decode, templates = _KINDS[kind]
    try:
        # Lazily: a template with thousands of wrong requirements is read up to the first few.
        found = (one for template, path in templates(decode(body)) for one in over_limits(template, path))
        return tuple(Problem(INVALID, one.message) for one in islice(found, MOST_TOLD))
    except (msgspec.DecodeError, RecursionError):
        return ()
