"""Owners that name a queue which does not reach their pods: these run outside of quota. Pure: what was read in.

The webhook copies the label into their templates. It did not where the owner was created before it, or while its
configuration was away, and where nothing can be queued at all.
"""

from collections.abc import Iterable, Iterator

from cli.doctor.findings import Finding, warning
from cli.output import in_one_line, some
from crds.constants import Keys
from crds.owner_templates import Json, OwnerKind, Place, dotted_path, places_in

Owned = tuple[OwnerKind, Json]


def findings(owners: Iterable[Owned], keys: Keys) -> Iterator[Finding]:
    """``owners``: those with the label of a queue, as the API server has them."""
    for kind, body in owners:
        metadata = body.get("metadata") or {}
        queue = (metadata.get("labels") or {}).get(keys.queue_name)
        if not queue or metadata.get("deletionTimestamp"):
            continue
        namespace, name = metadata.get("namespace", ""), metadata.get("name", "")
        about, where = f"{kind.kind} {namespace}/{name}", f"{kind.plural}.{kind.group} -n {namespace} {name}"
        if not kind.queues:
            text = f"it names queue {queue}, and a {kind.kind} cannot be queued: its pods run outside of quota"
            yield warning(about, text, f"kubectl label {where} {keys.queue_name}-, or use a JobSet")
            continue
        places = {path: found for place in kind.places for path, found in _queues_in(body, place, keys)}
        others = [path for path, found in places.items() if found != queue]
        if others:
            # Keys in the path are the tenant's own text: of any length, and with anything in it.
            shown = some([in_one_line(path) for path in others])
            text = f"it names queue {queue}, and {shown} does not: its pods run outside of that queue"
            yield warning(about, f"{text} (it was made without Topogate's webhook)", _mend(kind, where, queue, keys))


def _queues_in(body: Json, place: Place, keys: Keys) -> Iterator[tuple[str, object]]:
    """Each place, and the queue that its pods get."""
    for pointer, found in places_in(body, place):
        metadata = found.get("metadata") if place.below else found
        labels = metadata.get("labels") if isinstance(metadata, dict) else None
        path = ".".join((dotted_path(pointer), *place.below))
        yield path, labels.get(keys.queue_name) if isinstance(labels, dict) else None


def _mend(kind: OwnerKind, where: str, queue: str, keys: Keys) -> str:
    # Twice: an update that changes nothing is not reviewed.
    again = f"kubectl label {where} {keys.queue_name}- && kubectl label {where} {keys.queue_name}={queue}"
    if kind.rolls:
        return f"{again}; this replaces its pods"
    return f"{again}; its pods stay as they are until you delete it and create it again"
