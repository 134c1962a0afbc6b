"""Which namespaces are served beside a Kueue that has the same domain: those with the label `crds.constants.SERVED`.

Rules
- Kueue leaves out namespaces that have the label, whatever its value (selector ``DoesNotExist``); here it has to be
  "true". So no namespace is served by both.
- What is served is read when a term begins. A label that changes ends the term: the next one reads all jobs of the
  namespace, with Kueue's Workloads, before its first look at one. A namespace that is new has none yet. After one such
  term the next ones end later and later (`ungater.process.ServedChanges`), for whoever changes labels in a loop; but
  soon where one is served no longer, since Kueue serves it by then.
"""

from collections.abc import Callable

import msgspec

from crds.constants import SERVED
from kube.objects import Namespace
from ungater.model.kueue_objects import KueueWorkload


class BesideKueue(msgspec.Struct, frozen=True):
    """What a cache asks about a Kueue beside it, and whom it tells.

    ``find``: Kueue's Workload of a job, by the job's id. ``is_known``: whether all of them were read, or it is known
    that there are none. ``restart``: has the term end, and another begin; called with
    the name of a namespace that is served no longer, or "" where one is to be served.
    """

    find: Callable[[str], KueueWorkload | None]
    is_known: Callable[[], bool]
    restart: Callable[[str], None]


class ServedNamespaces:
    """See the module. ``beside`` None: all are served."""

    def __init__(self, beside: BesideKueue | None) -> None:
        self._beside = beside
        self._names: set[str] = set()

    def serves(self, namespace: str) -> bool:
        """Whether jobs and pods of a namespace are served in this term."""
        return self._beside is None or namespace in self._names

    def read_namespace(self, wire: Namespace) -> None:
        """A namespace is there when the term begins."""
        if is_served(wire):
            self._names.add(wire.metadata.name)

    def note_namespace(self, old: Namespace | None, new: Namespace) -> None:
        """A namespace came or changed while the term runs."""
        if old is None and is_served(new):
            self._names.add(new.metadata.name)
        if self._beside is not None and is_served(new) != self.serves(new.metadata.name):
            # From now on Kueue starts its jobs, which this term would suspend.
            leaving = new.metadata.name if self.serves(new.metadata.name) else ""
            self._beside.restart(leaving)


def is_served(namespace: Namespace) -> bool:
    """Whether a namespace's label says that it is served here."""
    return (namespace.metadata.labels or {}).get(SERVED) == "true"
