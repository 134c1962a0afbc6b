"""The topology request of a job, as its annotations say it. Pure: the webhook and the ungater read it alike.

Rules
- Every accepted spelling means the same: ``require-topology`` and ``podset-required-topology``, ``prefer-topology`` and
  ``podset-preferred-topology``, ``podset-unconstrained-topology: "true"``, all under the configured domain.
- The same request said twice is fine. Two that differ are refused with a message that names both.
- ``auto`` (the narrowest level) goes with preferred alone.
- Slices (`crds.slices`) may come with any of them; alone they are as with unconstrained. So is ``gpu-link`` alone, but
  where unconstrained is said to be ``"false"``.
- The Job's annotations and those of its pod template are one request: either may carry it.
- A level is told by its label key, or by a name that a flavor gives it (`crds.levels`), of which `with_label_keys`
  makes the key.
- So are the wishes that go with it (`NumaWish`): the same said twice is fine, two that differ are refused.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from crds.constants import (
    EVICT_BY,
    GPU_LINK,
    NUMA_POLICY,
    NUMA_RESOURCES,
    PREEMPTIBLE,
    SLICE,
    TOPOLOGY_QOS,
    Keys,
)
from crds.names import is_label_key, is_object_name
from crds.slices import BadSlices, Place, Slices, read_slices
from engine.kubelet.machine import TopologyPolicy
from engine.model import Policy, ShareLimits, SliceLayer, TopologyRequest
from engine.reasons import Reason

AUTO = "auto"
JOB_PATH = "metadata.annotations"
TEMPLATE_PATH = "spec.template.metadata.annotations"

GUARANTEED, NUMA_GUARANTEED, RANKS = "guaranteed", "numa-guaranteed", "best-effort"  # topology-qos

# What a job may wish for beside its level, under keys that are the same in every domain.
CHOICES: Mapping[str, tuple[str, ...]] = {
    NUMA_POLICY: ("single-numa-node", "restricted", "best-effort", "socket", "none"),
    GPU_LINK: ("require", "prefer"),
    TOPOLOGY_QOS: (GUARANTEED, NUMA_GUARANTEED, RANKS),
    EVICT_BY: ("workload", SLICE),
    PREEMPTIBLE: ("true", "false"),
}
WISHES = (*CHOICES, NUMA_RESOURCES)
# As resource names in pods: cpu, memory, hugepages-2Mi, nvidia.com/gpu.
_RESOURCE = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?\Z")


class RequestError(ValueError):
    """A topology request that cannot be honoured.

    ``reason`` is one of the closed set, ``field`` the path of the annotation, ``value`` what stood there, and the text
    says what is allowed.
    """

    def __init__(self, reason: Reason, field: str, value: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.field = field
        self.value = value


class ParsedRequest(msgspec.Struct, frozen=True):
    """A request: ``level`` is a node label key, ``auto`` (preferred only), or None where unconstrained.

    As written it may be a level's name instead, till `with_label_keys` makes a key of it; ``written`` is what it was
    then.
    """

    policy: Policy
    level: str | None
    field: str = ""  # where it was read, for messages; not part of what is asked
    slices: tuple[SliceLayer, ...] = ()
    slices_field: str = ""  # where they were read
    group: str = ""  # pod sets that share one domain
    shares: ShareLimits | None = None
    shares_field: str = ""
    written: "ParsedRequest | None" = None

    @property
    def as_written(self) -> "ParsedRequest":
        """The same with the names that its author used."""
        return self.written or self

    @property
    def auto(self) -> bool:
        """Whether the narrowest level of the flavor is meant."""
        return self.level == AUTO

    def same_request(self, other: "ParsedRequest") -> bool:
        """Whether both ask for the same, wherever they were written."""
        return (self.policy, self.level) == (other.policy, other.level)


class BadWish(NamedTuple):
    """A wish that cannot be honoured: where it stands, what stands there, and what is allowed."""

    field: str
    value: str
    message: str


class NumaWish(msgspec.Struct, frozen=True):
    """What a pod asks of the inside of its machine: ``policy`` is what has to hold, whatever ranks machines beside it.

    ``resources`` () are all that the zones report.
    """

    policy: TopologyPolicy = TopologyPolicy.NONE
    resources: tuple[str, ...] = ()
    gpu_link: str = ""


def bad_wishes(annotations: Mapping[str, str], path: str) -> Iterator[BadWish]:
    """Every wish in these annotations that is none, with its place below ``path``."""
    for key, allowed in CHOICES.items():
        value = annotations.get(key)
        if value is not None and value not in allowed:
            text = f'{path}[{key}]: Unsupported value: "{value}": supported values: {quoted(allowed)}'
            yield BadWish(f"{path}[{key}]", value, text)
    resources = annotations.get(NUMA_RESOURCES)
    if resources is not None and not all(_RESOURCE.match(name) for name in resources.split(",")):
        field = f"{path}[{NUMA_RESOURCES}]"
        text = (
            f'{field}: Invalid value: "{resources}": expected resource names separated by commas, as '
            '"nvidia.com/gpu,cpu"'
        )
        yield BadWish(field, resources, text)


def contradicting_wishes(
    job: Mapping[str, str], template: Mapping[str, str], path: str = TEMPLATE_PATH
) -> Iterator[BadWish]:
    """Wishes that a Job and its pod template, whose annotations stand at ``path``, both name, and differently."""
    for key in WISHES:
        if key in job and key in template and job[key] != template[key]:
            text = f'{JOB_PATH}[{key}]: "{job[key]}" contradicts {path}[{key}]: "{template[key]}": keep one of the two'
            yield BadWish(f"{JOB_PATH}[{key}]", job[key], text)


def parse_wish(annotations: Mapping[str, str], *, path: str = JOB_PATH) -> NumaWish:
    """Read what a pod asks of its machine. Raises RequestError (InvalidRequest) for the first bad value."""
    if bad := next(bad_wishes(annotations, path), None):
        raise RequestError(Reason.INVALID_REQUEST, bad.field, bad.value, bad.message)
    names = annotations.get(NUMA_RESOURCES)
    return NumaWish(
        _has_to_hold(annotations.get(NUMA_POLICY), annotations.get(TOPOLOGY_QOS)),
        tuple(sorted(set(names.split(",")))) if names else (),
        annotations.get(GPU_LINK, ""),
    )


def wishes_of(job: Mapping[str, str] | None, template: Mapping[str, str] | None, *, asks: bool) -> Mapping[str, str]:
    """The wishes of a job that ``asks`` for a topology; else those alone that are about its queue. Raises as above."""
    if asks:
        return parse_job_wish(job, template)
    # Without a request the others have no effect, so a bad one among them refuses nothing.
    said = [place[PREEMPTIBLE] for place in (job or {}, template or {}) if PREEMPTIBLE in place]
    return {PREEMPTIBLE: said[0]} if said else {}


def _has_to_hold(policy: str | None, qos: str | None) -> TopologyPolicy:
    """What refuses a machine: the policy, as far as the QoS guarantees it.

    A QoS without a policy is about the fewest zones that will do (``restricted``). Under ``numa-guaranteed`` one socket
    is no more than preferred, so that a wish for it leaves the fewest zones guaranteed.
    """
    wish = TopologyPolicy(policy or (TopologyPolicy.RESTRICTED if qos else TopologyPolicy.NONE))
    if wish is TopologyPolicy.NONE:
        return wish
    if qos == RANKS:
        return TopologyPolicy.BEST_EFFORT
    return TopologyPolicy.RESTRICTED if qos == NUMA_GUARANTEED and wish is TopologyPolicy.SOCKET else wish


def parse_job_wish(job: Mapping[str, str] | None, template: Mapping[str, str] | None) -> dict[str, str]:
    """The wishes of a Job from its own annotations and its pod template's, as annotations.

    Raises RequestError (InvalidRequest, ContradictingRequests) that names the annotation(s).
    """
    job, template = job or {}, template or {}
    parse_wish(job, path=JOB_PATH)
    parse_wish(template, path=TEMPLATE_PATH)
    if bad := next(contradicting_wishes(job, template), None):
        raise RequestError(Reason.CONTRADICTING_REQUESTS, bad.field, bad.value, bad.message)
    # Where both name one they agree, or the line above has raised.
    return {key: place[key] for place in (job, template) for key in WISHES if key in place}


def parse_request(annotations: Mapping[str, str] | None, keys: Keys, *, path: str = JOB_PATH) -> ParsedRequest | None:
    """Read the request from one object's annotations; None where there is none.

    Raises RequestError (InvalidRequest, ContradictingRequests) that names the annotation(s), below ``path``.
    """
    return _parsed([(annotations or {}, path)], keys)


def parse_job_request(
    job: Mapping[str, str] | None, template: Mapping[str, str] | None, keys: Keys
) -> ParsedRequest | None:
    """Read the request of a Job from its own annotations and its pod template's; both count as one.

    Raises RequestError as `parse_request` does, also where the two places differ.
    """
    return _parsed([(job or {}, JOB_PATH), (template or {}, TEMPLATE_PATH)], keys)


def parse_places(places: Sequence[Place], keys: Keys) -> ParsedRequest | None:
    """Read one request that may be written in several places: (annotations, their path). Raises RequestError."""
    return _parsed(places, keys)


def canonical(request: ParsedRequest, keys: Keys) -> tuple[str, str]:
    """Key and value of the annotation that Topogate itself writes for this request, slices and group apart."""
    if request.policy is Policy.UNCONSTRAINED:
        return keys.unconstrained, "true"
    spellings = keys.required if request.policy is Policy.REQUIRED else keys.preferred
    return spellings[0], request.as_written.level or ""


def level_in(request: ParsedRequest, levels: Sequence[str]) -> str | None:
    """The request's level in a flavor with these levels (``auto``: the narrowest); None where it has no such level."""
    if request.auto:
        return levels[-1] if levels else None
    return request.level if request.level in levels else None


def pods_in_all(text: str) -> int | None:
    """The number of pods that an annotation tells; None where it is none."""
    # The length before the number: Python's int refuses very long texts by an error of its own.
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 10 and 0 < int(text) < 1 << 31 else None


def group_named(labels: Mapping[str, str] | None, annotations: Mapping[str, str] | None, keys: Keys) -> str:
    """The group of a pod that no Job owns, as its annotation says or else its label; "" for none.

    The annotation counts first, as in Kueue (0.19.2, ``GetPodGroupName`` in pkg/util/pod/pod.go; gate
    ``WorkloadIdentifierAnnotations``, beta from 0.18). One that is no name counts as none (`is_group_name`).
    """
    told = (annotations or {}).get(keys.pod_group)
    if told and is_group_name(told):
        return told
    return (labels or {}).get(keys.pod_group, "")


@lru_cache(maxsize=1024)  # asked for with each event of a pod
def is_group_name(text: str) -> bool:
    """Whether the annotation may say this: a part of an id is made of it, so it has no slash."""
    return is_object_name(text)


def resolve(request: ParsedRequest, levels: Sequence[str]) -> TopologyRequest | None:
    """The request as the engine takes it, in a flavor with these levels; None where the flavor lacks the level."""
    level = level_in(request, levels)
    if level is None and request.policy is not Policy.UNCONSTRAINED:
        return None
    return TopologyRequest(policy=request.policy, level=level, slices=request.slices, shares=request.shares)


def unresolved(request: ParsedRequest) -> TopologyRequest:
    """The request as the engine takes it, with the level whatever flavors have."""
    return TopologyRequest(policy=request.policy, level=request.level, slices=request.slices, shares=request.shares)


def _parsed(places: Sequence[Place], keys: Keys) -> ParsedRequest | None:
    found = _merge([request for annotations, path in places for request in _written(annotations, keys, path)])
    # A pod that wants linked devices has to be placed, anywhere, unless it says that it is not to be.
    # Only where nothing else is asked for: unconstrained beside a level would contradict it.
    if found is None:
        linked = next((f"{path}[{GPU_LINK}]" for annotations, path in places if GPU_LINK in annotations), None)
        declined = any(annotations.get(keys.unconstrained) == "false" for annotations, _ in places)
        if linked is not None and not declined:
            found = ParsedRequest(Policy.UNCONSTRAINED, None, linked)
    slices = read_slices(places, keys)
    if isinstance(slices, BadSlices):
        raise RequestError(slices.reason, slices.field, slices.value, slices.message)
    if slices == Slices():
        return found
    if slices.group and (found is None or found.policy is Policy.UNCONSTRAINED):
        field, needed = slices.group_field, quoted((keys.required[0], keys.preferred[0]))
        text = f'{field}: Forbidden: "{slices.group}": a group shares a domain of a level: it needs one of {needed}'
        raise RequestError(Reason.INVALID_REQUEST, field, slices.group, text)
    if slices.shares is not None and (found is None or found.policy is not Policy.REQUIRED):
        field, needed = slices.shares_field, quoted(keys.required)
        text = (
            f"{field}: Forbidden: it counts by the one domain that has all pods of a pod set: it needs one of {needed}"
        )
        raise RequestError(Reason.INVALID_REQUEST, field, "", text)
    found = found or ParsedRequest(Policy.UNCONSTRAINED, None, slices.field)
    return replace(
        found,
        slices=slices.layers,
        slices_field=slices.field,
        group=slices.group,
        shares=slices.shares,
        shares_field=slices.shares_field,
    )


def _written(annotations: Mapping[str, str], keys: Keys, path: str) -> Iterator[ParsedRequest]:
    """Every request that is written here, one for each spelling in use."""
    for policy, spellings in ((Policy.REQUIRED, keys.required), (Policy.PREFERRED, keys.preferred)):
        for key in spellings:
            if key in annotations:
                yield _level_request(policy, annotations[key], f"{path}[{key}]")
    if keys.unconstrained in annotations:
        field, value = f"{path}[{keys.unconstrained}]", annotations[keys.unconstrained]
        if value not in {"true", "false"}:
            raise _invalid(field, value, 'expected "true" or "false"')
        if value == "true":
            yield ParsedRequest(Policy.UNCONSTRAINED, None, field)


def _level_request(policy: Policy, level: str, field: str) -> ParsedRequest:
    if level == AUTO and policy is Policy.REQUIRED:
        raise _invalid(field, level, f'"{AUTO}" goes with prefer-topology only; name a level')
    if not is_label_key(level):
        listed = "as `kubectl get resourceflavors.topogate.dev -o wide` lists them"
        raise _invalid(field, level, f"expected the node label key of one topology level, or its name, {listed}")
    return ParsedRequest(policy, level, field)


def _merge(written: Sequence[ParsedRequest]) -> ParsedRequest | None:
    found: ParsedRequest | None = None
    for request in written:
        if found is None:
            found = request
        elif not found.same_request(request):
            raise RequestError(
                Reason.CONTRADICTING_REQUESTS,
                request.field,
                request.level or "true",
                f"{_request_in_words(request)} contradicts {_request_in_words(found)}: keep one of the two",
            )
    return found


def _request_in_words(request: ParsedRequest) -> str:
    return f'{request.field}: "{request.level or "true"}"'


def _invalid(field: str, value: str, expected: str) -> RequestError:
    return RequestError(Reason.INVALID_REQUEST, field, value, f'{field}: Invalid value: "{value}": {expected}')


def quoted(texts: Sequence[str]) -> str:
    """Texts as a message lists them."""
    return ", ".join(f'"{text}"' for text in texts)
