"""`topogate doctor` finds classes that are there twice and do not say the same."""

import pytest

from cli.doctor.classes import findings
from crds.constants import PREEMPTIBLE
from kube.objects import ObjectMeta, PriorityClass
from ungater.model.class_rules import ClassRules


def classed(value, **annotations):
    return PriorityClass(metadata=ObjectMeta(name="batch", annotations=annotations), value=value)


def said(ours, kueues):
    rules = ClassRules()
    for table, wire in ((rules.of_workloads, ours), (rules.of_kueue, kueues)):
        if wire is not None:
            rules.set_rule(table, "batch", wire)
    return list(findings(rules))


@pytest.mark.parametrize(("ours", "kueues"), [(5, 5), (5, None), (None, 5)])
def test_nothing_is_said_of_one_that_is_there_once_or_says_the_same(ours, kueues):
    assert said(*(None if value is None else classed(value) for value in (ours, kueues))) == []


def test_two_values_are_told_with_the_one_that_counts():
    (found,) = said(classed(10), classed(5))
    assert (str(found.weight), found.about) == ("warning", "WorkloadPriorityClass batch")
    assert found.message == (
        "it is there in topogate.dev and in kueue.x-k8s.io, with the values 10 and 5; "
        "Topogate takes that of topogate.dev"
    )
    assert found.mend.startswith("kubectl edit workloadpriorityclass.topogate.dev batch: ")


def test_two_annotations_are_told_too():
    (found,) = said(classed(5, **{PREEMPTIBLE: "false"}), classed(5))
    assert "differ in their annotations" in found.message
