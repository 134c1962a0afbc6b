"""WorkloadPriorityClasses that are there twice. Pure: what was read in, findings out."""

from collections.abc import Iterator

from cli.doctor.findings import Finding, warning
from ungater.model.class_rules import ClassRules


def findings(rules: ClassRules) -> Iterator[Finding]:
    """The classes that say something else in our group than in Kueue's, by name."""
    for name in sorted(rules.of_workloads.keys() & rules.of_kueue.keys()):
        ours, others = rules.of_workloads[name], rules.of_kueue[name]
        if ours != others:
            values = f"with the values {ours.value} and {others.value}"
            differ = values if ours.value != others.value else "and differ in their annotations"
            message = (
                f"it is there in topogate.dev and in kueue.x-k8s.io, {differ}; Topogate takes that of topogate.dev"
            )
            mend = f"kubectl edit workloadpriorityclass.topogate.dev {name}: have both say the same, or delete one"
            yield warning(f"WorkloadPriorityClass {name}", message, mend)
