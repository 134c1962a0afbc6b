"""What the pods of a job will be, or are: its templates with all that the API server adds, or as pods were made."""

from collections.abc import Callable, Iterable

from msgspec import structs
from msgspec.structs import replace

from kube import objects
from kube.informer import Event
from kube.objects import LimitRange
from kube.pods.defaults import with_defaults
from kube.pods.placement_fields import kept_tolerations
from ungater.cache.core import Core
from ungater.model.job_view import JobView, PodSetView
from ungater.model.workload_entry import FilledTemplate, WorkloadEntry


class MadePods:
    """See the module. Of pods that no template made all is known already."""

    def __init__(self, core: Core) -> None:
        self._stores = core.stores
        self._entries = core.entries

    def with_made_pods(self, own: JobView) -> JobView:
        """A job with its templates as its pods are made."""
        if not (own.suspendable or own.foretold):
            return own
        entry, ranges = self._entries.get(own.id), tuple(self._stores.limit_ranges(own.namespace))
        per_pod = not own.suspendable  # pods of StatefulSets have volumes of their own
        pod_sets = tuple(
            [self._pod_set(at, one, entry, ranges, per_pod=per_pod) for at, one in enumerate(own.pod_sets)]
        )
        if all(now is was for now, was in zip(pod_sets, own.pod_sets, strict=True)):
            return own
        return replace(own, pod_sets=pod_sets, priority_class=pod_sets[0].template.spec.priority_class_name)

    def _pod_set(
        self,
        at: int,
        own: PodSetView,
        entry: WorkloadEntry | None,
        ranges: tuple[LimitRange, ...],
        *,
        per_pod: bool,
    ) -> PodSetView:
        template, spec = own.template, own.template.spec
        made = entry.made.get(own.name) if entry is not None else None
        # Pods that were made of another template say nothing of this one. Gates are left out, as they are ours.
        if made is not None and made.made_of == structs.replace(spec, scheduling_gates=None):
            # DefaultTolerationSeconds adds some to every pod, which are not the template's.
            tolerations = kept_tolerations(made.spec) or None
            volumes = spec.volumes if per_pod else made.spec.volumes
            kept = structs.replace(
                made.spec, scheduling_gates=spec.scheduling_gates, tolerations=tolerations, volumes=volumes
            )
            return replace(own, template=structs.replace(template, spec=kept), as_made=True)
        runtime = self._stores.runtime_class(spec.runtime_class_name) if spec.runtime_class_name else None
        if not ranges and runtime is None:
            return own
        known = entry.filled.get(at) if entry is not None else None
        # By identity of the template: comparing two of them at each event costs more than filling one.
        if known is None or known.own is not template or (known.ranges, known.runtime) != (ranges, runtime):
            filled = structs.replace(template, spec=with_defaults(spec, ranges, runtime))
            known = FilledTemplate(template, ranges, runtime, filled)
            if entry is not None:
                entry.filled[at] = known  # a template is not filled anew at each event
        return replace(own, template=known.template)


class PodDefaults:
    """What the event of a LimitRange or a RuntimeClass changes: pods that are made from now on.

    ``review``: looks at a job anew.
    """

    def __init__(self, core: Core, review: Callable[[str], None]) -> None:
        self._core = core
        self._review = review

    def on_limit_range(self, event: Event[objects.LimitRange]) -> None:
        """A LimitRange came, changed or went."""
        old, new = event.old, event.new
        if old is not None and new is not None and old.spec == new.spec:
            return
        one = new or old
        namespace = one.metadata.namespace if one is not None else ""
        self._requeue_jobs(entry for entry in self._core.entries.values() if entry.job.namespace == namespace)

    def on_runtime_class(self, event: Event[objects.RuntimeClass]) -> None:
        """A RuntimeClass came, changed or went."""
        self._requeue_jobs(entry for entry in self._core.entries.values() if _names(entry, event.key))

    def _requeue_jobs(self, entries: Iterable[WorkloadEntry]) -> None:
        if not self._core.live:
            return
        for entry in tuple(entries):
            with self._core.guard("workload", entry.key):
                # Pods that are made from now on may differ from the ones that were seen, whose form counts no more.
                entry.forget_pods()
                self._review(entry.id)


def _names(entry: WorkloadEntry, runtime_class: str) -> bool:
    return any(one.template.spec.runtime_class_name == runtime_class for one in (entry.own or entry.job).pod_sets)
