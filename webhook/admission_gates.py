"""Who may hold a job back until they agree: what is checked of the annotation ``admission-gated-by``.

Rules, as in Kueue 0.19.2 (pkg/util/webhook/validation_admissiongatedby.go)
- It lists names such as ``example.com/budget``, separated by commas: each once, 63 characters at most, and no more than
  64 of them (Kueue has no such bound).
- It comes with the object. Afterwards names are taken out of it, and none is added.
- Of pods the policy ``topogate-pods`` decides about updates: this webhook sees their creation alone.
- What came while no webhook answered stays as it is until somebody changes it; any text holds the job back.
"""

import re
from collections.abc import Iterator
from itertools import islice

from crds.constants import Keys
from crds.names import is_object_name, listed_names
from crds.request import JOB_PATH
from webhook.checks import INVALID, Problem
from webhook.objects import ReviewedMetadata, annotations_of

MAX_GATE = 63  # as long as spec.managedBy of a Job
MAX_GATES = 64  # the policy for pods compares as many
_SHOWN = 3  # problems of one annotation
_PATH = re.compile(r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+")


def check_gates(metadata: ReviewedMetadata | None, keys: Keys) -> Iterator[Problem]:
    """The controllers that hold a new object back are named as they should be."""
    text = annotations_of(metadata).get(keys.gated_by, "")
    at = f"{JOB_PATH}[{keys.gated_by}]"
    # Anybody may write thousands: the first few say enough.
    yield from (Problem(INVALID, f"{at}: Invalid value: {why}") for why in islice(bad_gates(text), _SHOWN))


def check_changed_gates(
    metadata: ReviewedMetadata | None, old: ReviewedMetadata | None, keys: Keys
) -> Iterator[Problem]:
    """Of those that hold an object back, which is there, none is added. One that goes may be left with anything."""
    before, after = (annotations_of(each).get(keys.gated_by, "") for each in (old, metadata))
    if before == after or (metadata is not None and metadata.deletion_timestamp):
        return
    if why := bad_change(before, after):
        yield Problem(INVALID, f"{JOB_PATH}[{keys.gated_by}]: Forbidden: {why}")
    else:
        yield from check_gates(metadata, keys)


def bad_gates(text: str) -> Iterator[str]:
    """What is wrong with a value of the annotation, for a message that names it."""
    seen: set[str] = set()
    names = listed_names(text)
    if len(names) > MAX_GATES:
        yield f"{len(names)} names: expected no more than {MAX_GATES}"
    for name in names:
        host, slash, path = name.partition("/")
        if name in seen:
            yield f'"{_shortened(name)}" stands there twice'
        elif not (slash and is_object_name(host) and _PATH.fullmatch(path)):
            yield f'"{_shortened(name)}": expected names such as "example.com/budget", separated by commas'
        elif len(name) > MAX_GATE:
            yield f'"{_shortened(name)}": a name has at most {MAX_GATE} characters'
        seen.add(name)


def bad_change(old: str, new: str) -> str:
    """Why the annotation cannot become this, for a message; "" where it can."""
    if not new:
        return ""
    if not old:
        return "it cannot be added after the creation"
    known = set(listed_names(old))
    added = next((name for name in listed_names(new) if name not in known), None)
    return f'"{_shortened(added)}" cannot be added: names can only be removed' if added is not None else ""


def _shortened(name: str) -> str:
    return name if len(name) <= MAX_GATE else f"{name[:MAX_GATE]}..."
