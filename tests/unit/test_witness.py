"""The witness of the chaos runs says nothing of a history that keeps the rules, and names each rule that is broken."""

import pytest
from support.story import Story, condition


@pytest.fixture
def story():
    return Story()


def preemption(story):
    """A whole one, as it should be."""
    story.low()
    story.job("high", 1, priority=5)
    story.plan()
    story.told()
    story.evict("low-0")
    story.evict("low-1")
    story.back()
    story.admit("high", {"n1": 1})
    story.pod("high-0", "high", "n1", zone="node-0")


def test_a_preemption_that_keeps_the_rules_is_no_news(story):
    preemption(story)
    assert story.wrong() == []
    (plan,) = story.witness.preemptions.plans
    assert (plan.outcome, plan.judged, story.witness.preemptions.in_vain()) == ("admitted", True, [])
    assert story.witness.preemptions.evicted == {"low-wl": 2}
    assert story.witness.preemptions.requeued == {"low-wl": 1}


def born_without_gate(story):
    story.job("one")
    story.born("p", "one", gated=False)


def ungated_before_admission(story):
    story.job("one")
    story.born("p", "one")
    story.ungate("p", "one", "n1")


def ungated_into_no_slot(story):
    story.job("one")
    story.admit("one", {"n1": 2})
    story.born("p", "one")
    story.ungate("p", "one", "n2")


def one_too_many(story):
    story.job("one", gpus=1)
    story.admit("one", {"n1": 1, "n2": 1}, gpus=1)
    for name in ("p", "q"):
        story.born(name, "one", gpus=1)
        story.ungate(name, "one", "n1")


def bound_elsewhere(story):
    story.job("one")
    story.admit("one", {"n1": 2})
    story.born("p", "one")
    story.ungate("p", "one", "n1")
    story.change("pods", "p", spec={"nodeName": "n2"})


def slots_over_a_node(story):
    story.job("one", 1)
    story.admit("one", {"n1": 1})
    story.job("two")
    story.admit("two", {"n1": 2})


def pods_over_a_node(story):
    story.low()
    story.tell("workloads", "ns/low", None)
    story.job("one", 1)
    story.admit("one", {"n1": 1})
    story.pod("p", "one", "n1")


def too_few_slots(story):
    story.job("one")
    story.admit("one", {"n1": 1})


def over_quota(story):
    story.job("one", 4)
    story.admit("one", {"n1": 2, "n2": 2})


def let_go_unadmitted(story):
    story.job("one")
    story.change("jobs", "one", spec={"suspend": False})


def freed_with_pods(story):
    story.low()
    story.told(reason="Deactivated")
    story.back()


def told_without_plan(story):
    story.low()
    story.told()


def evicted_untold(story):
    story.low()
    story.job("high", 1, priority=5)
    story.plan()
    story.evict("low-0")


def evicted_outside_plans(story):
    story.low()
    story.told(reason="Deactivated")
    story.change("workloads", "low", status={"conditions": [condition("Evicted", "True", "Preempted")]})
    story.evict("low-0")


def deleted(story):
    story.low()
    story.gone("pods", "low-0")


def equal_priority(story):
    story.low()
    story.job("high", 1)
    story.plan()


def no_word_of_return(story):
    story.low()
    story.job("high", 1, priority=5)
    story.plan()
    story.told()
    story.evict("low-0")
    story.evict("low-1")
    story.change("workloads", "low", status={"admission": None})


def budget_broken(story):
    meta, select = {"namespace": "ns", "name": "keep"}, {"matchLabels": {"app": "low"}}
    story.tell("budgets", "ns/keep", {"metadata": meta, "spec": {"minAvailable": 1, "selector": select}})
    preemption(story)


@pytest.mark.parametrize(
    ("tell", "text"),
    [
        (born_without_gate, "was born without our gate"),
        (ungated_before_admission, "before an admission of one was stored"),
        (ungated_into_no_slot, "which is no slot of one"),
        (one_too_many, "2 pods in slot ('r1', 'n1') of one, which counts 1: "),
        (bound_elsewhere, "is bound to n2, outside of"),
        (slots_over_a_node, "slots and pods without one take 12.0 of 8.0 nvidia.com/gpu"),
        (pods_over_a_node, "pods take 12.0 of 8.0 nvidia.com/gpu"),
        (too_few_slots, "1 pods of main are admitted, it has"),
        (over_quota, "use 16.0 of 12.0"),
        (let_go_unadmitted, "was let go before its admission"),
        (freed_with_pods, "is let go, and low has no admission"),
        (told_without_plan, "is told to make room, and is in no plan"),
        (evicted_untold, "was evicted, and ns/low was not told"),
        (evicted_outside_plans, "was evicted, and ns/low is in no plan"),
        (deleted, "and was deleted, and not by an eviction"),
        (equal_priority, "and is no less important"),
        (no_word_of_return, "made room and does not wait again"),
        (budget_broken, "asks for 1 pods and has 0 after ns/low-1 went"),
    ],
)
def test_each_broken_rule_is_named(story, tell, text):
    tell(story)
    assert any(text in found for found in story.wrong()), story.wrong()


def test_an_eviction_in_vain_is_seen(story):
    """The preemptor's pod goes to the other node, where there was room."""
    story.low()
    story.job("high", 1, priority=5)
    story.plan(slots={"n2": 1})
    story.told()
    story.evict("low-0")
    story.evict("low-1")
    story.back()
    story.admit("high", {"n2": 1})
    story.pod("high-0", "high", "n2")
    (text,) = story.witness.preemptions.in_vain()
    assert "ns/low went for ns/high, which needed none of its room" in text


def test_an_eviction_after_its_plan_has_ended_is_told_apart(story):
    story.low()
    story.job("high", 1, priority=5)
    story.plan()
    story.told()
    story.evict("low-0")
    story.change("workloads", "high", status={"nomination": None})
    story.evict("low-1")
    assert story.wrong() == []
    assert story.witness.preemptions.plans[0].outcome == "given up"
    (late,) = story.witness.preemptions.late
    assert "after the plan had ended" in late


def test_what_a_kubelet_refused_is_listed(story):
    story.low()
    story.change("pods", "low-0", status={"phase": "Failed", "reason": "TopologyAffinityError"})
    assert story.witness.preemptions.refused == ["ns/low-0: TopologyAffinityError"]


def test_a_preemptor_that_has_to_go_before_it_runs_is_no_judge_of_what_it_used(story):
    story.low()
    story.job("high", 1, priority=5)
    story.plan()
    story.told()
    story.evict("low-0")
    story.evict("low-1")
    story.back()
    story.admit("high", {"n1": 1})
    story.told("high", reason="QueueDrained")
    story.back("high")
    (plan,) = story.witness.preemptions.plans
    assert (plan.outcome, plan.overtaken, plan.judged) == ("admitted", True, True)
    assert story.wrong() == []
