"""What priority classes say beside their value: whom they make nobody's victim, and who has nobody evicted.

Rules
- Classes are for administrators to write, those of Kubernetes, of Kueue and of Topogate alike; who names one is another
  question, and so is whether a queue believes it (`queueing.model.NonPreemptible`).
- A job is of the class that its priority comes from: the WorkloadPriorityClass that its label names, where there is
  one; else the PriorityClass of its pods, or the default one.
- A job with a queue whose label names none is of the WorkloadPriorityClass `DEFAULT`, where there is one, as in Kueue.
  It comes before the class of the pods.
- WorkloadPriorityClasses are ours or Kueue's. Of two with one name ours counts.
- Whoever says that nobody is evicted for a job is believed: that class, its pods' PriorityClass, and its pods.
"""

from typing import Final, NamedTuple

from msgspec.structs import replace

from crds.constants import PREEMPTIBLE, PREEMPTION_POLICY
from kube.objects import Pod, PriorityClass
from queueing.model import NonPreemptible
from ungater.model.job_view import JobView

NEVER = "Never"
DEFAULT: Final = "default"


class ClassRule(NamedTuple):
    """What one class says."""

    preemptible: bool = True
    preempts: bool = True
    value: int = 0
    default: bool = False


def rule_of(wire: PriorityClass) -> ClassRule:
    """What a class says, of either kind."""
    said = wire.metadata.annotations or {}
    preempts = NEVER not in {wire.preemption_policy, said.get(PREEMPTION_POLICY)}
    return ClassRule(said.get(PREEMPTIBLE) != "false", preempts, wire.value, wire.global_default)


class ClassRules:
    """See the module's rules. By name: ``of_pods`` PriorityClasses, ``of_workloads`` and ``of_kueue`` the others."""

    def __init__(self) -> None:
        self.of_pods: dict[str, ClassRule] = {}
        self.of_workloads: dict[str, ClassRule] = {}
        self.of_kueue: dict[str, ClassRule] = {}

    def set_rule(self, rules: dict[str, ClassRule], name: str, wire: PriorityClass | None) -> bool:
        """A class of one of the tables came, changed or went (None); True where that may concern anybody."""
        # The default is read before the table changes: another one concerns all pods that name no class.
        before, default = self._counting(rules, name), self.of_class("")
        if wire is None:
            rules.pop(name, None)
        else:
            rules[name] = rule_of(wire)
        now = self._counting(rules, name)
        if rules is not self.of_pods and (before is None) is not (now is None):
            return True  # without it the classes of its jobs' pods count, whatever those say
        said = [rule for rule in (before, now) if rule is not None and not (rule.preemptible and rule.preempts)]
        return (before != now and bool(said)) or default[:2] != self.of_class("")[:2]

    def _counting(self, rules: dict[str, ClassRule], name: str) -> ClassRule | None:
        """What counts of the name of a class in one of the tables: of two WorkloadPriorityClasses only one does."""
        return rules.get(name) if rules is self.of_pods else self.class_named(name)

    def rule_of_job(self, job: JobView) -> ClassRule | None:
        """What the WorkloadPriorityClass of a job says; None where the classes of its pods count."""
        return self.class_named(job.workload_class or (DEFAULT if job.queue else ""))

    def with_class(self, job: JobView) -> JobView:
        """The job as if its label named the class that it is of without one."""
        of_default = not job.workload_class and self.rule_of_job(job) is not None
        return replace(job, workload_class=DEFAULT) if of_default else job

    def class_named(self, name: str) -> ClassRule | None:
        """What the WorkloadPriorityClass of a name says; None where there is none."""
        return self.of_workloads.get(name) or self.of_kueue.get(name)

    def default_name(self) -> str:
        """The PriorityClass that the API server gives to pods that name none; "" where there is no such class."""
        defaults = (name for name, rule in self.of_pods.items() if rule.default)
        return min(defaults, key=lambda name: self.of_pods[name].value, default="")

    def preempts(self, job: JobView) -> bool:
        """Whether others may be evicted for a job."""
        said = any(one.template.spec.preemption_policy == NEVER for one in job.pod_sets)
        of_workload = self.rule_of_job(job) or ClassRule()
        return not said and of_workload.preempts and self.of_class(job.priority_class).preempts

    def non_preemptible(self, job: JobView) -> NonPreemptible:
        """Who says that a job is nobody's victim."""
        counts = self.rule_of_job(job) or self.of_class(job.priority_class)
        if not counts.preemptible:
            return NonPreemptible.BY_CLASS
        said = any(one.wishes.get(PREEMPTIBLE) == "false" for one in job.pod_sets)
        return NonPreemptible.BY_WORKLOAD if said else NonPreemptible.NEVER

    def is_protected(self, pod: Pod) -> bool:
        """Whether a pod that no queue admitted is nobody's victim by its class."""
        return not self.of_class(pod.spec.priority_class_name).preemptible

    def of_class(self, name: str) -> ClassRule:
        """What the class of pods says; of pods that name none, of several defaults the lowest."""
        # A class that is not known (any more) says nothing: pods of it keep the number that they were given.
        if name:
            return self.of_pods.get(name, ClassRule())
        return min(
            # The admission plugin Priority goes by the lowest value, too, where several classes are global defaults.
            (one for one in self.of_pods.values() if one.default),
            key=lambda one: one.value,
            default=ClassRule(),
        )
