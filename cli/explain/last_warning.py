"""What the controller told last of a job that has no Workload, which would say it: its newest warning as an event."""

from collections.abc import Iterable

from kube.client import Client
from kube.errors import Forbidden
from kube.events import ObjectReference
from kube.resources import EVENTS
from kube.told_events import ToldEvent


async def last_warning(client: Client, about: ObjectReference) -> ToldEvent | None:
    """None where there is none, or whoever asks may not read events. Raises KubeError."""
    selector = f"regarding.kind={about.kind},regarding.name={about.name}"
    try:
        found = await client.list(EVENTS, about.namespace, type=ToldEvent, field_selector=selector)
    except Forbidden:
        return None
    return newest(found, about)


def newest(found: Iterable[ToldEvent], about: ObjectReference) -> ToldEvent | None:
    """Of this very object: one of its name that is gone may have left some."""
    ours = (one for one in found if one.regarding.uid == about.uid and one.ours and one.type == "Warning")
    return max(ours, key=lambda one: one.last, default=None)
