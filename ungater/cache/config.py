"""What flavors, queues, namespaces and priority classes change."""

from collections.abc import Callable

import structlog

from kube import objects
from kube.informer import Event
from kube.pods import convert
from kube.pods.exclusive import Additions
from kube.queues import ClusterQueue, Cohort, LocalQueue, cluster_queue, cohort, local_queue, plain_flavor, stored_use
from queueing.model import Stop, part_of
from ungater.cache.core import Core
from ungater.model.class_rules import ClassRule, ClassRules
from ungater.model.conditions import ADMITTED
from ungater.model.job_view import JobView, PodSetView
from ungater.model.workload_entry import WorkloadEntry

log = structlog.get_logger()


class PriorityClasses:
    """PriorityClasses and WorkloadPriorityClasses, and what they mean for a job."""

    def __init__(self, rules: ClassRules) -> None:
        self._rules = rules

    def priority_of_job(self, owner: JobView) -> int:
        """The priority of a job: of the class that its label names or of the default one, else of its pods.

        That of pods is the one that the API server will give them.
        The label names a WorkloadPriorityClass. It may name the PriorityClass of the pods too, which changes nothing.
        One of others is not theirs to have: who may use it is decided where pods are admitted.
        """
        if owner.priority is not None:
            return owner.priority
        named = self._rules.rule_of_job(owner)
        return self.of_pods(owner) if named is None else named.value

    def unknown_class(self, owner: JobView) -> bool:
        """Whether a job's label names no class that counts for it."""
        named = owner.workload_class
        # A label that names the pods' own PriorityClass changes nothing, so it is no error.
        return bool(named) and self._rules.class_named(named) is None and named != owner.priority_class

    def of_pods(self, owner: JobView) -> int:
        """The priority of a job's pods, as kube-scheduler compares them."""
        return self._value(owner.priority_class)

    def of_spec(self, spec: objects.PodSpec) -> int:
        """The priority of pods of this spec: it says it, or will once the API server has made a pod of it."""
        return self._value(spec.priority_class_name) if spec.priority is None else spec.priority

    def added(self, owned: PodSetView) -> Additions:
        """What others add to the pods of a pod set."""
        return owned.added.additions_for_priority(self._value(owned.template.spec.priority_class_name))

    def _value(self, name: str) -> int:
        return self._rules.of_class(name).value


class ClassEvents:
    """What the event of a priority class changes: its value counts for jobs that are looked at from now on.

    ``class_changed``: told at once of each job, and ``note_outside`` of each pod, where a class says otherwise who is
    evicted, or for whom. ``value_changed``: called where pods may have another priority.
    """

    def __init__(
        self,
        core: Core,
        rules: ClassRules,
        class_changed: Callable[[WorkloadEntry], None],
        note_outside: Callable[[objects.Pod], None],
        value_changed: Callable[[], None],
    ) -> None:
        self.rules = rules
        self._core = core
        self._class_changed = class_changed
        self._note_outside = note_outside
        self._value_changed = value_changed

    def on_class(self, event: Event[objects.PriorityClass]) -> None:
        """A PriorityClass came, changed or went."""
        self._apply_class(self.rules.of_pods, event)
        if self._core.live and (event.old is None or event.new is None or event.old.value != event.new.value):
            self._value_changed()

    def on_workload_class(self, event: Event[objects.PriorityClass]) -> None:
        """A WorkloadPriorityClass of ours came, changed or went."""
        self._apply_class(self.rules.of_workloads, event)

    def on_kueue_class(self, event: Event[objects.PriorityClass]) -> None:
        """A WorkloadPriorityClass of Kueue's came, changed or went."""
        self._apply_class(self.rules.of_kueue, event)

    def read_class(self, wire: objects.PriorityClass) -> None:
        """A PriorityClass is there."""
        self.rules.set_rule(self.rules.of_pods, wire.metadata.name, wire)

    def _apply_class(self, rules: dict[str, ClassRule], event: Event[objects.PriorityClass]) -> None:
        core = self._core
        # False where no rule of preemption changed: the value counts for jobs that are looked at from now on.
        if not self.rules.set_rule(rules, event.key, event.new):
            return
        for entry in core.entries.values():
            with core.guard("workload", entry.key):
                self._class_changed(entry)
        # Plain pods are asked again only where settings let them be victims: there may be very many.
        for name in core.state.nodes if core.queues.rules.pods else ():
            for pod in core.stores.pods_on(name):
                with core.guard("pod", objects.key(pod)):
                    self._note_outside(pod)
        core.queues.flavors_changed()  # whoever may be a victim now helps others
        core.signal()


class ConfigEvents:
    """What the event of a flavor, a queue or a namespace changes.

    ``forget_namespace``: of what waits in it. ``renamed``: called where jobs ask for other levels than before.
    """

    def __init__(self, core: Core, forget_namespace: Callable[[str], None], renamed: Callable[[], None]) -> None:
        self._core = core
        self._state = core.state
        self._queues = core.queues
        self._entries = core.entries
        self._enqueue = core.enqueue
        self._signal = core.signal
        self._forget_namespace = forget_namespace
        self._renamed = renamed

    def on_flavor(self, event: Event[objects.ResourceFlavor]) -> None:
        """A flavor came, changed or went: who waits may have a place now, or never; who holds slots keeps them."""
        # Our own write of the flavor's condition comes back as an event; it would have every job looked at.
        if not self._core.live or _same_flavor(event.old, event.new):
            return
        self._core.layout_changed()
        if event.new is None:
            self._no_topology(event.key)
            self._queues.remove_flavor(event.key)
        else:
            self.read_flavor(event.new)
        # Also where queues do not know the flavor: options, memos and
        # counters of free room depend on those of the engine.
        self._queues.flavors_changed()
        self._core.queue_inadmissible()
        for uid, entry in self._entries.items():
            entry.patches.clear()  # they carry what the flavor said
            self._enqueue(uid, 0.0)

    def on_namespace(self, event: Event[objects.Namespace]) -> None:
        """A namespace came, has other labels, or went."""
        if not self._core.live:
            return
        if event.new is None:
            self._forget_namespace(event.key)
        else:
            self._queues.set_namespace(event.key, event.new.metadata.labels or {})
            self._core.served.note_namespace(event.old, event.new)
        self._signal()

    def on_cluster_queue(self, event: Event[ClusterQueue]) -> None:
        """A ClusterQueue came, changed or went."""
        if not self._core.live:
            return
        if event.new is None:
            self._queues.remove_cluster_queue(event.key)
        else:
            self.set_cluster_queue(event.new)
        # Before the signal: a cycle must not place jobs by what a level's name meant in the old flavors of their queue.
        self._rerouted()
        # Only a queue that is new: jobs were left running for want of
        # it, and a change of its quota makes none of them wait.
        if event.old is None and event.new is not None:
            self._look_at_left_running()
        self._look_at_unadmitted(
            event, lambda entry: entry.admission is not None and entry.admission.queue == event.key
        )
        self._signal()

    def on_cohort(self, event: Event[Cohort]) -> None:
        """A Cohort came, changed or went."""
        if not self._core.live:
            return
        if event.new is None:
            self._queues.remove_cohort(event.key)
        else:
            self.read_cohort(event.new)
        # No job is looked at: which flavors its queue has, and whether there is such a queue, is not said by cohorts.
        self._signal()

    def on_local_queue(self, event: Event[LocalQueue]) -> None:
        """A LocalQueue came, changed or went."""
        if not self._core.live:
            return
        if event.new is not None:
            self.set_local_queue(event.new)
        elif event.old is not None:
            self._queues.remove_local_queue(event.old.metadata.namespace, event.old.metadata.name)
        self._rerouted()
        if event.old is None and event.new is not None:
            self._look_at_left_running((event.new.metadata.namespace, event.new.metadata.name))
        self._look_at_unadmitted(event, lambda entry: f"{entry.job.namespace}/{entry.job.queue}" == event.key)
        self._signal()

    def _look_at_left_running(self, queue: tuple[str, str] | None = None) -> None:
        """A queue is there: jobs that were left running for want of it are looked at. They wait in none that tells.

        ``queue``: the namespace and name of a LocalQueue, which others than its own jobs need not be looked at for.
        """
        for uid, entry in self._entries.items():
            owner = entry.job
            runs = owner.suspendable and not owner.suspended and entry.admission is None
            if owner.queue and runs and queue in {None, (owner.namespace, owner.queue)}:
                self._enqueue(uid, 0.0)

    def _look_at_unadmitted(
        self, event: Event[ClusterQueue] | Event[LocalQueue], is_of_queue: Callable[[WorkloadEntry], bool]
    ) -> None:
        """A queue may have been stopped: who holds something and waits for its checks is to give it back.

        ``is_of_queue``: others need not be looked at, and a tenant may stop a LocalQueue and open it in a loop.
        """
        if event.new is None or event.new.spec.stop_policy in {Stop.NONE, event.old and event.old.spec.stop_policy}:
            return
        for uid, entry in self._entries.items():
            if entry.admission is None or entry.observed is None or not entry.job.queue or not is_of_queue(entry):
                continue
            if not objects.is_true(entry.observed.conditions, ADMITTED):
                self._enqueue(uid, 0.0)

    def _rerouted(self) -> None:
        """Queues give other flavors: what a name means may depend on that."""
        # As long as each name means one level everywhere, no queue's choice of flavors changes what jobs ask for.
        if self._core.level_names.ambiguous:
            self._renamed()

    def read_flavor(self, wire: objects.ResourceFlavor) -> None:
        """A flavor is there."""
        flavor, plain = convert.flavor(wire), plain_flavor(wire)
        if flavor is None:
            self._no_topology(wire.metadata.name)
        else:
            self._core.flavors[flavor.name] = flavor.levels
            self._state.set_flavor(flavor)
            names = wire.spec.topology.names if wire.spec.topology is not None else None
            if self._core.level_names.set(flavor.name, flavor.levels, names):
                self._renamed()
        if plain is None:
            self._queues.remove_flavor(wire.metadata.name)
        else:
            self._queues.set_flavor(plain)

    def _no_topology(self, flavor: str) -> None:
        self._core.flavors.pop(flavor, None)
        self._state.remove_flavor(flavor)
        if self._core.level_names.remove(flavor):
            self._renamed()

    def set_cluster_queue(self, wire: ClusterQueue) -> None:
        """A ClusterQueue is there."""
        try:
            self._queues.set_cluster_queue(cluster_queue(wire))
        except ValueError as error:
            # One queue that cannot be read must not stop the others, and its workloads must not lose their quota.
            log.warning(
                "a ClusterQueue cannot be read; what was known of it counts", queue=wire.metadata.name, error=error
            )
        self._restore_use(wire, is_queue=True)

    def read_cohort(self, wire: Cohort) -> None:
        """A Cohort is there."""
        try:
            self._queues.set_cohort(cohort(wire))
        except ValueError as error:
            # As with a queue: without its place in the tree, the queues below it would lose what they borrow.
            log.warning("a Cohort cannot be read; what was known of it counts", cohort=wire.metadata.name, error=error)
        self._restore_use(wire, is_queue=False)

    def _restore_use(self, wire: ClusterQueue | Cohort, *, is_queue: bool) -> None:
        # At a start alone, as with LocalQueues.
        if not self._core.live and (used := stored_use(wire)) is not None:
            self._queues.quotas.over_time.restore_use((is_queue, wire.metadata.name), *used)

    def read_namespace(self, wire: objects.Namespace) -> None:
        """A namespace is there at a start."""
        self._queues.set_namespace(wire.metadata.name, wire.metadata.labels or {})
        self._core.served.read_namespace(wire)

    def set_local_queue(self, wire: LocalQueue) -> None:
        """A LocalQueue is there."""
        try:
            self._queues.set_local_queue(local_queue(wire))
        except ValueError as error:
            # As above: its workloads stay in the queue that was known, or wait until there is one.
            name = f"{wire.metadata.namespace}/{wire.metadata.name}"
            log.warning("a LocalQueue cannot be read; what was known of it counts", queue=name, error=error)
        # At a start alone: later on the status is what was written here, and what is known is newer.
        if not self._core.live and (used := stored_use(wire)) is not None:
            self._queues.use.restore_use(part_of(wire.metadata.namespace, wire.metadata.name), *used)


def _same_flavor(old: objects.ResourceFlavor | None, new: objects.ResourceFlavor | None) -> bool:
    """Whether nothing but its status changed. Its condition follows its generation, whatever that was raised for."""
    if old is None or new is None or old.spec != new.spec:
        return False
    was, now = old.metadata, new.metadata
    # A flavor that was made again has another uid: its status is empty, though its spec is the same.
    return (was.uid, was.generation) == (now.uid, now.generation)
