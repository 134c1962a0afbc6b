"""The witness of the chaos runs says nothing of a history that keeps the rules, and names each rule that is broken."""

import copy

import pytest
from support.cluster_checker import GATE, MARK
from support.etcd_events import Change
from support.preemptions import BY_EVICTION, OBSERVED, SCARCE
from support.witness import HOSTNAME, POD_SET, QUEUE, Witness

ASKS = "kueue.x-k8s.io/podset-required-topology"
RACK = "rack"


def condition(type_, status, reason="", message="because"):
    return {"type": type_, "status": status, "reason": reason, "message": message}


class Story:
    """Tells the witness what happens, one version of an object after another."""

    def __init__(self):
        self.witness = Witness()
        self.witness.preemptions.zone = 4
        self.revision = 0
        self.things = {}
        for name in ("n1", "n2"):
            labels = {HOSTNAME: name, RACK: "r1"}
            allocatable = {SCARCE: "8", "cpu": "16", "pods": "110"}
            self.tell(
                "nodes", name, {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": allocatable}}
            )
        resources = [{"name": SCARCE, "nominalQuota": "12"}]
        group = {"flavors": [{"name": "tas", "resources": resources}]}
        self.tell("queues", "team", {"metadata": {"name": "team"}, "spec": {"resourceGroups": [group]}})

    def tell(self, kind, key, new):
        self.revision += 1
        self.things[kind, key] = new
        self.witness.see(Change(self.revision, kind, key, copy.deepcopy(new)))

    def change(self, kind, name, **changes):
        """Merge into an object, to any depth; None removes."""
        key = f"ns/{name}"
        self.tell(kind, key, _merged(self.things[kind, key], changes))

    def gone(self, kind, name):
        self.tell(kind, f"ns/{name}", None)

    def job(self, name, pods=2, gpus=4, priority=0):
        meta = {"namespace": "ns", "name": name, "uid": f"{name}-job", "labels": {QUEUE: "team"}}
        self.tell(
            "jobs", f"ns/{name}", {"metadata": meta, "spec": {"suspend": True, "parallelism": pods}, "status": {}}
        )
        container = {"name": "c", "resources": {"limits": {SCARCE: str(gpus)}, "requests": {"cpu": "1"}}}
        template = {"spec": {"containers": [container]}}
        owner = [{"uid": f"{name}-job", "controller": True, "name": name}]
        body = {
            "metadata": {"namespace": "ns", "name": name, "uid": f"{name}-wl", "ownerReferences": owner},
            "spec": {"priority": priority, "podSets": [{"name": "main", "count": pods, "template": template}]},
            "status": {},
        }
        self.tell("workloads", f"ns/{name}", body)

    def admission(self, name, slots, gpus=4):
        count = sum(slots.values())
        slices = [{"nodeLabels": {RACK: "r1", HOSTNAME: node}, "count": n} for node, n in slots.items()]
        part = {
            "name": "main",
            "count": count,
            "flavors": {SCARCE: "tas"},
            "resourceUsage": {SCARCE: str(count * gpus)},
            "topologyAssignment": {"levels": [RACK, HOSTNAME], "slices": slices},
        }
        return {"clusterQueue": "team", "podSetAssignments": [part]}

    def admit(self, name, slots, gpus=4):
        self.change("workloads", name, status={"admission": self.admission(name, slots, gpus), "nomination": None})
        self.change("jobs", name, spec={"suspend": False})

    def born(self, name, job, gpus=4, gated=True):
        container = {"name": "c", "resources": {"limits": {SCARCE: str(gpus)}, "requests": {"cpu": "1"}}}
        owner = [{"uid": f"{job}-job", "controller": True}]
        annotations = {ASKS: RACK, POD_SET: "main"}
        meta = {"namespace": "ns", "name": name, "uid": f"{name}-{self.revision}", "labels": {"app": job}}
        spec = {"containers": [container], "schedulingGates": [{"name": GATE}] if gated else []}
        body = {**meta, "ownerReferences": owner, "annotations": annotations}
        self.tell("pods", f"ns/{name}", {"metadata": body, "spec": spec, "status": {"phase": "Pending"}})

    def ungate(self, name, job, node):
        spec = {"schedulingGates": [], "nodeSelector": {RACK: "r1", HOSTNAME: node}}
        self.change("pods", name, metadata={"annotations": {MARK: job}}, spec=spec)

    def run(self, name, node, zone="node-0", gpus=4):
        placed = f'[{{"zone": "{zone}", "amount": {{"{SCARCE}": "{gpus}"}}}}]'
        ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        self.change("pods", name, spec={"nodeName": node}, status=ready, metadata={"annotations": {OBSERVED: placed}})

    def pod(self, name, job, node, **options):
        self.born(name, job)
        self.ungate(name, job, node)
        self.run(name, node, **options)

    def evict(self, name):
        type_, reason = BY_EVICTION
        conditions = [condition("Ready", "True"), {"type": type_, "status": "True", "reason": reason}]
        self.change("pods", name, status={"conditions": conditions})
        self.change("pods", name, metadata={"deletionTimestamp": "now"})
        self.gone("pods", name)

    def low(self, slots=None):
        """A job of two pods of 4 GPUs that runs on n1, one pod a zone."""
        self.job("low")
        self.admit("low", slots or {"n1": 2})
        self.pod("low-0", "low", "n1", zone="node-0")
        self.pod("low-1", "low", "n1", zone="node-1")

    def plan(self, victims=("low",), slots=None):
        listed = [{"namespace": "ns", "name": name, "uid": f"{name}-wl"} for name in victims]
        nomination = {**self.admission("high", slots or {"n1": 1}), "victims": listed}
        self.change("workloads", "high", status={"nomination": nomination})

    def told(self, name="low", reason="Preempted"):
        conditions = [condition("Evicted", "True", reason), condition("Preempted", "True", "InClusterQueue")]
        self.change("workloads", name, status={"conditions": conditions})

    def back(self, name="low"):
        self.change("jobs", name, spec={"suspend": True})
        kept = self.things["workloads", f"ns/{name}"]["status"]["conditions"]
        waits = [condition("QuotaReserved", "False", "Pending"), condition("Requeued", "True", "Requeued")]
        self.change("workloads", name, status={"admission": None, "conditions": [*kept, *waits]})

    def wrong(self):
        return [text.partition(": ")[2] for text in self.witness.wrong]


def _merged(old, changes):
    merged = dict(old)
    for key, value in changes.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            merged[key] = _merged(merged.get(key, {}), value)
        else:
            merged[key] = value
    return merged


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
