"""A Job or JobSet that asks for something else than before: its pod templates have copies of what it said.

The webhook made them. They follow while the Job is suspended, for its template may change then. Else its pods are made
by them already.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from crds.constants import Keys
from crds.request import WISHES, RequestError, canonical, parse_places
from crds.slices import Place
from webhook.objects import ReviewedPod, annotations_of


def stale_copies(
    was: Sequence[Place], now: Sequence[Place], templates: tuple[ReviewedPod, ReviewedPod], keys: Keys
) -> dict[str, str]:
    """Keys of a template's copies that say what was said above it before, and where each is said.

    ``was``, ``now``: the annotations above the template; ``templates``: itself, before and now.
    """
    before, after = (annotations_of(template.metadata) for template in templates)
    return {
        key: field
        for key, value, field in _changed_annotations(was, now, before, keys)
        # Both times: a copy that its author edits in the same update is the author's own word.
        if before.get(key) == value and after.get(key) == value
    }


def without_annotations(template: ReviewedPod, copies: Mapping[str, str]) -> ReviewedPod:
    """The template without these annotations."""
    kept = {key: text for key, text in annotations_of(template.metadata).items() if key not in copies}
    if template.metadata is None:
        return template
    return msgspec.structs.replace(template, metadata=msgspec.structs.replace(template.metadata, annotations=kept))


def still_asked(
    was: Sequence[Place], now: Sequence[Place], template: ReviewedPod, keys: Keys
) -> tuple[str, str] | None:
    """Key and value of the copy of a request that nobody says any more, and that counts on; None for none."""
    try:
        before, after = (parse_places(said, keys) for said in (was, now))
    except RequestError:
        return None
    # Where something is still asked for, the copy either follows it or contradicts it, and others say so.
    if before is None or after is not None:
        return None
    key, value = canonical(before, keys)
    return (key, value) if annotations_of(template.metadata).get(key) == value else None


def _changed_annotations(
    was: Sequence[Place], now: Sequence[Place], copies: Mapping[str, str], keys: Keys
) -> Iterator[tuple[str, str, str]]:
    """Key and value of each copy that was made of annotations which say something else now, and where."""
    try:
        before, after = (parse_places(said, keys) for said in (was, now))
        # A request that was removed from the owner still counts through its copy, which a new request replaces.
        before = before or parse_places([(copies, "")], keys)
    except RequestError:
        return
    if before is not None and after is not None and canonical(before, keys) != canonical(after, keys):
        yield (*canonical(before, keys), after.field)
    # The places above the template have one copy in it: the lower place comes last, and wins.
    said, says = ({key: text for place, _ in places for key, text in place.items()} for places in (was, now))
    for key in (*WISHES, *keys.grouping):
        if key in said and says.get(key) != said[key]:
            path = next(path for place, path in (*now, *was) if key in place)
            yield key, said[key], f"{path}[{key}]"
