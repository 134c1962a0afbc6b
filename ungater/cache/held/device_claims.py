"""Workloads whose pods ask for devices that are not counted here: of resource claims, or of DeviceClasses.

Rules
- A workload whose pods have resource claims waits. Placed by amounts alone, some of its pods would be held to nodes on
  which no device is left, and wait there for ever.
- So does one that asks for an extended resource for which a DeviceClass stands, as long as no node publishes that
  resource. Where nodes do (their device plugin), those nodes count, and no others: there kube-scheduler goes by what
  the node publishes, and by no class (`kube.pods.device_claims`).
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from crds.constants import Keys
from engine.model import Node
from kube import objects
from kube.pods.device_claims import DeviceClass, DeviceClasses, claims_in_words, named_in
from kube.pods.requests import pod_requests
from ungater.model.pod_slots import finished, is_gated
from ungater.model.workload_entry import WorkloadEntry

NOT_COUNTED = "devices of such are not counted yet, and pods would be sent to nodes on which none may be left"


class DeviceClaims:
    """See the module's rules."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._classes = DeviceClasses()
        self._nodes: Counter[str] = Counter()  # how many nodes publish some of an extended resource
        self._asking: dict[str, frozenset[str]] = {}  # by id of a job: resources of classes that its pods ask for

    def hindrance(self, entry: WorkloadEntry) -> str | None:
        """Why a workload is given nothing as its pods ask for devices; None where they do not."""
        job = entry.job
        if job.over:
            return None
        self._asking.pop(job.id, None)
        for owned in job.pod_sets:
            if owned.count and (why := self._why(job.id, owned.template.spec)) is not None:
                return f"the pods of pod set {owned.name} {why}"
        first: tuple[str, str] | None = None
        for pod in entry.pods.values():
            if pod.spec.resource_claims is None and not self._classes.asked_by(pod.spec):
                continue  # there may be thousands
            name = pod.metadata.name
            waits = is_gated(pod, self._keys.gate) and not finished(pod) and pod.metadata.deletion_timestamp is None
            if waits and (first is None or name < first[0]) and (why := self._why(job.id, pod.spec)) is not None:
                first = name, why
        return f"its pods, such as {first[0]}, {first[1]}" if first is not None else None

    def given(self, uid: str) -> str:
        """What is told of a job that asks for what nodes publish and classes give too; "" where it does not."""
        names = sorted(self._asking.get(uid, ()))
        named = ((name, self._classes.of_resource(name)) for name in names)
        return "; ".join(f'of {name} no devices of DeviceClass "{one}" are counted' for name, one in named if one)

    def forget(self, uid: str) -> None:
        """A job is gone."""
        self._asking.pop(uid, None)

    def _why(self, uid: str, spec: objects.PodSpec) -> str | None:
        """What pods of this spec ask for that is not counted; None where there is nothing."""
        if claims := claims_in_words(spec):
            return f"have {claims}: {NOT_COUNTED}"
        named = self._classes.asked_by(spec)
        asked = pod_requests(spec) if named else {}
        wanted = sorted(name for name in named if asked.get(name, 0) > 0)
        if wanted:
            self._asking[uid] = self._asking.get(uid, frozenset()).union(wanted)
        missing = next((name for name in wanted if not self._nodes[name]), None)
        if missing is None:
            return None
        one = self._classes.of_resource(missing)
        return f'ask for {missing}, which no node publishes and DeviceClass "{one}" stands for: {NOT_COUNTED}'

    # --- what changes it -----------------------------------------------------------------------------------------

    def set_class(self, name: str, found: DeviceClass | None, entries: Mapping[str, WorkloadEntry]) -> list[str]:
        """A DeviceClass came, changed or went: the ids of those that wait and ask for what it stands, or stood, for."""
        names = self._classes.note(name, found)
        waiting = ((uid, entry) for uid, entry in entries.items() if names and entry.admission is None)
        return [uid for uid, entry in waiting if any(named_in(spec, names) for spec in _specs(entry))]

    def set_node(self, before: Node | None, now: Node | None) -> list[str]:
        """A node came, changed or went: the ids of jobs that ask for what some node publishes now, or none any more."""
        was, has = _published(before), _published(now)
        turned: set[str] = set()
        for change, names in ((1, has - was), (-1, was - has)):
            for name in names:
                self._nodes[name] += change
                if self._nodes[name] == max(change, 0):
                    turned.add(name)
                if not self._nodes[name]:
                    del self._nodes[name]
        return [uid for uid, names in self._asking.items() if turned & names] if turned else []


def _specs(entry: WorkloadEntry) -> Iterable[objects.PodSpec]:
    yield from (owned.template.spec for owned in entry.job.pod_sets)
    yield from (pod.spec for pod in entry.pods.values())


def _published(node: Node | None) -> set[str]:
    """The extended resources of which a node has some to give."""
    return (
        {name for name, amount in node.allocatable.items() if amount > 0 and "/" in name} if node is not None else set()
    )
