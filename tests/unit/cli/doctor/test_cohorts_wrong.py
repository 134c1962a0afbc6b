"""`topogate doctor` finds what is wrong with trees of cohorts, each once, with what mends it."""

from support.queue_objects import GPU, cluster, cohort, quota, read

from cli.doctor.queues import findings


def said(cohorts, *queues):
    reading = read([cluster(name, cohortName=of) for name, of in queues], (), (), cohorts=cohorts)
    return [
        (str(one.weight), one.about, one.message, one.mend) for one in findings(reading.queues, {"tas"}, defaults=True)
    ]


def test_nothing_is_said_of_trees_that_are_in_order():
    tree = [cohort("org", "", quota(amount=8)), cohort("research", "org", quota(amount=0, borrowingLimit="6"))]
    assert said(tree, ("vision", "research")) == []


def test_nothing_is_said_of_cohorts_without_objects():
    assert said((), ("a", "team"), ("b", "teams")) == []


def test_a_circle_is_told_once_whatever_is_in_it_and_below_it():
    tree = [cohort("b", "a"), cohort("a", "b"), cohort("below", "a")]
    ((weight, about, message, mend),) = said(tree, ("x", "below"), ("y", "a"), ("z", "b"))
    assert (weight, about) == ("error", "Cohort a")
    assert message.startswith("cohorts a and b are each other's parents (a → b → a): nothing of the queues below")
    assert mend == "kubectl edit cohorts.topogate.dev a: name another spec.parentName, or none and no limits"


def test_two_circles_are_two_findings():
    tree = [cohort("b", "a"), cohort("a", "b"), cohort("c", "d"), cohort("d", "c")]
    assert [about for _, about, *_ in said(tree)] == ["Cohort a", "Cohort c"]


def test_a_missing_parent_is_a_warning_with_the_name_that_was_meant():
    ((weight, about, message, mend),) = said([cohort("org"), cohort("research", "orgs")], ("vision", "research"))
    assert (weight, about) == ("warning", "Cohort research")
    assert message == "there is no Cohort orgs, its parent: it counts as one without quota or limits"
    assert mend.endswith("; did you mean org?")
    ((_, _, _, mend),) = said([cohort("research", "company")], ("vision", "research"))
    assert mend == "create that Cohort, or kubectl edit cohorts.topogate.dev research: name another spec.parentName"


def test_queues_whose_cohort_is_nearly_an_object_are_told_together():
    ((weight, about, message, mend),) = said([cohort("research")], ("v", "reserach"), ("w", "reserach"), ("x", "flat"))
    assert (weight, about) == ("warning", "ClusterQueue v, w")
    assert message.startswith("names cohort reserach, for which there is no Cohort")
    assert mend == "kubectl edit clusterqueues.topogate.dev v: check spec.cohortName; did you mean research?"


def test_quota_that_no_queue_below_lists():
    ((weight, about, message, mend),) = said([cohort("org", "", quota("tass", 8)), cohort("a", "org")], ("q", "a"))
    assert (weight, about) == ("warning", "Cohort org")
    assert message.startswith(f"has quota or limits for {GPU} of flavor tass, which no ClusterQueue below it lists")
    assert mend.endswith("; did you mean tas?")
