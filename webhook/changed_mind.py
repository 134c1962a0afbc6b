"""A Job that asks for something else than before: its pod template has copies of what it said, made by the webhook.

They follow while the Job is suspended, for its template may change then. Else its pods are made by them already.
"""

from collections.abc import Iterator

import msgspec

from crds.constants import Keys
from crds.request import JOB_PATH, WISHES, RequestError, canonical, parse_job_request
from webhook.objects import Job, Pod, annotations_of

_NO_TEMPLATE = Pod()


def stale_copies(old: Job, new: Job, keys: Keys) -> dict[str, str]:
    """Keys of the template's copies that say what the Job's own annotations said before, and where each is said."""
    was, now = annotations_of(old.metadata), annotations_of(new.metadata)
    before, after = (annotations_of(_template(job).metadata) for job in (old, new))
    return {
        key: field
        for key, value, field in _changed(was, now, keys)
        if before.get(key) == value and after.get(key) == value
    }


def without(job: Job, copies: dict[str, str]) -> Job:
    """The Job without these annotations of its template."""
    template = _template(job)
    kept = {key: text for key, text in annotations_of(template.metadata).items() if key not in copies}
    if job.spec is None or template.metadata is None:
        return job
    metadata = msgspec.structs.replace(template.metadata, annotations=kept)
    template = msgspec.structs.replace(template, metadata=metadata)
    return msgspec.structs.replace(job, spec=msgspec.structs.replace(job.spec, template=template))


def _changed(was: dict[str, str], now: dict[str, str], keys: Keys) -> Iterator[tuple[str, str, str]]:
    """Key and value of each copy that was made of annotations which say something else now, and where."""
    try:
        before, after = (parse_job_request(said, {}, keys) for said in (was, now))
    except RequestError:
        return
    if before is not None and after is not None and canonical(before, keys) != canonical(after, keys):
        yield (*canonical(before, keys), after.field)
    for key in (*WISHES, *keys.grouping):
        if key in was and now.get(key) != was[key]:
            yield key, was[key], f"{JOB_PATH}[{key}]"


def _template(job: Job) -> Pod:
    return (job.spec.template if job.spec is not None else None) or _NO_TEMPLATE
