"""Pods that are bound and do not start: what they wait for, who is told, and what it says of their node."""

import msgspec
import pytest
from support.owned import context, make_known, make_owner, make_pod, make_record, slot_map

from engine.reasons import Reason
from kube.objects import Condition, ContainerState, ContainerStatus, WaitingState
from ungater.let_go.coming_pods import ComingPods
from ungater.model import actions as i
from ungater.model.conditions import ADMITTED, PODS_READY
from ungater.model.life import LifeRules
from ungater.model.unstarted import PATIENCE, SILENT, UNPREPARED
from ungater.reconcile.reconcile import reconcile

SLOTS = slot_map(("b/r/n1", 2), ("b/r/n2", 2))


class Heard:
    """Pods of one workload with a clock of their own, and what follows from them."""

    def __init__(self):
        self.now = 100.0
        self.queued = []
        self.started = []
        self.refused = []
        self.owner = make_owner(labels={"kueue.x-k8s.io/queue-name": "team"})
        at = "2026-11-21T00:00:00Z"
        conditions = [
            Condition(type=ADMITTED, status="True", reason="Admitted", last_transition_time=at),
            Condition(type=PODS_READY, status="False", reason="WaitForStart", last_transition_time=at),
        ]
        observed = make_known(self.owner, slots=SLOTS, conditions=conditions)
        self.record = make_record(self.owner, slots=SLOTS, observed=observed)
        self.coming = ComingPods(
            "gate",
            10.0,
            enqueue=lambda uid, after: self.queued.append((uid, after)),
            started=self.started.append,
            unstarted=lambda *what: self.refused.append(what),
            clock=lambda: self.now,
        )

    def see(self, name="a", *, ready=None, waiting=None, phase="Pending"):
        pod = make_pod(name, owner=self.owner, at=("b", "r", "n1"), node="n1", phase=phase)
        status = pod.status
        if ready is not None:
            said = Condition(type="PodReadyToStartContainers", status=ready)
            status = msgspec.structs.replace(status, conditions=(said,))
        if waiting is not None:
            state = ContainerState(waiting=WaitingState(reason=waiting, message="m"))
            status = msgspec.structs.replace(status, container_statuses=(ContainerStatus(name="c", state=state),))
        pod = msgspec.structs.replace(pod, status=status)
        self.record.pods[pod.metadata.uid] = pod
        self.coming.record_arrival(self.record, pod)
        return pod

    def words(self):
        (one,) = self.record.unstarted.values()
        return one.words


@pytest.fixture
def heard():
    return Heard()


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, SILENT),
        ({"ready": "False", "waiting": "ContainerCreating"}, UNPREPARED),
        ({"ready": "True", "waiting": "ContainerCreating"}, ""),
        ({"waiting": "ContainerCreating"}, ""),
        ({"ready": "True", "waiting": "ImagePullBackOff"}, "ImagePullBackOff: m"),
        ({"ready": "True", "waiting": "CreateContainerConfigError"}, "CreateContainerConfigError: m"),
    ],
)
def test_what_a_pod_waits_for_is_what_its_kubelet_says(heard, said, expected):
    """kubelet 1.29 and later tell by PodReadyToStartContainers whether volumes and devices are ready."""
    heard.see(**said)
    assert heard.words() == expected


def test_a_pod_that_starts_soon_is_no_reason_for_another_look(heard):
    heard.see(ready="False")
    heard.now += PATIENCE - 1
    heard.coming.have_looked_at([heard.record])
    heard.see(phase="Running")
    assert heard.record.unstarted == {}
    assert heard.queued == []
    assert heard.started == ["n1"]


def test_after_a_while_its_events_are_asked_for_once_and_the_job_is_told_what_they_say(heard):
    first, second = heard.see("a", ready="False"), heard.see("b", ready="False")
    heard.now += PATIENCE
    heard.coming.have_looked_at([heard.record])
    assert heard.queued == [(heard.record.id, 0.0)]
    (asked,) = [one for one in reconcile(heard.record, context(), heard.now) if isinstance(one, i.NotStarted)]
    assert asked.pods == (first, second)
    heard.coming.count(heard.record, asked.pods, "FailedPrepareDynamicResources: no such config")
    done = reconcile(heard.record, context(), heard.now)
    assert [one for one in done if isinstance(one, i.NotStarted)] == []
    (said,) = [w for one in done if isinstance(one, i.WriteConditions) for w in one.wanted if w.type == PODS_READY]
    assert said.reason is Reason.NOT_STARTED
    assert said.message == (
        "pod a (and 1 more) is bound to n1 and does not start: FailedPrepareDynamicResources: no such config"
    )
    heard.coming.have_looked_at([heard.record])
    assert len(heard.queued) == 1, "nobody is asked again"


def test_what_a_node_does_not_get_ready_counts_against_it_and_what_a_container_lacks_does_not(heard):
    pods = [heard.see("a", ready="False"), heard.see("b", ready="True", waiting="ErrImagePull")]
    heard.coming.count(heard.record, pods, "FailedMount: no path")
    heard.coming.count(heard.record, pods, "FailedMount: no path")
    assert heard.refused == [("n1", heard.record.key, "FailedMount: no path")]


def test_a_workload_that_is_put_back_for_its_time_does_not_come_back_to_the_node_that_did_not_start_its_pod(heard):
    pod = heard.see("a", ready="False")
    heard.see("b", ready="True")
    wall = 1795219200.0 + 61
    done = reconcile(heard.record, context(life=LifeRules(ready_timeout=60.0)), heard.now, wall)
    assert [one for one in done if isinstance(one, i.LeaveOut)] == [i.LeaveOut((pod,))]
    (evict,) = [one for one in done if isinstance(one, i.Evict)]
    assert evict.reason is Reason.PODS_READY_TIMEOUT
    assert UNPREPARED in evict.message
    assert evict.wanted[0].message == evict.message
