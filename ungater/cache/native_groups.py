"""What the event of a PodGroup of Kubernetes itself (scheduling.k8s.io) changes: the jobs that name it."""

from kube.informer import Event
from kube.objects import PodGroup
from ungater.cache.held.named_groups import NamedGroups
from ungater.cache.views import JobViews


class GroupEvents:
    """See the module."""

    def __init__(self, groups: NamedGroups, views: JobViews) -> None:
        self._groups = groups
        self._views = views

    def on_group(self, event: Event[PodGroup]) -> None:
        """A PodGroup came, changed or went."""
        old, new = event.old, event.new
        if old is not None and new is not None and old.spec == new.spec:
            return  # its status tells what kube-scheduler did
        for uid in self._groups.naming(event.key):
            self._views.review(uid)
