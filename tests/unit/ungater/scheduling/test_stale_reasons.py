"""The reason that is shown is the one that holds now, though nothing comes that would help whoever waits."""

import msgspec
import pytest
from support.owned import make_job
from support.queued_world import entry_of, filled, queued
from support.world import NODES, World

from engine.reasons import Reason
from engine.results import Refusal
from kube.objects import Condition, Taint
from ungater.metrics import ControllerMetrics
from ungater.scheduling.scheduler import Scheduler
from ungater.scheduling.stale_reasons import BEHIND, EXPLAINED


class Time:
    """A clock that stands still until it is told to go on."""

    def __init__(self):
        self.seconds = 1_700_000_000.0

    def now(self):
        return self.seconds

    def monotonic(self):
        return self.seconds - 1_699_999_000.0


class Scene:
    """A world whose nodes come up, and the scheduler over it; nothing is written."""

    def __init__(self):
        self.clock = Time()
        self.world = filled(World())
        self.scheduler = Scheduler(
            self.world.memory,
            None,
            spawn=lambda write: write.close(),
            requeue=lambda *_: None,
            metrics=ControllerMetrics(),
            recorder=None,
            clock=self.clock,
        )

    def nodes(self, *, ready, taints=()):
        for node in NODES:
            conditions = (Condition(type="Ready", status="True" if ready else "False"),)
            status = msgspec.structs.replace(node.status, conditions=conditions)
            spec = msgspec.structs.replace(node.spec, taints=tuple(taints))
            self.world.put("node", msgspec.structs.replace(node, status=status, spec=spec))

    def waits(self, name, pods=2):
        job = queued(self.world, name, pods)
        entry = entry_of(self.world, job)
        self.world.memory.admissions.enqueue_entry(entry)
        return entry

    def after(self, seconds):
        self.clock.seconds += seconds
        while self.scheduler.cycle():
            pass


@pytest.fixture
def scene():
    return Scene()


TAINT = Taint(key="team", value="other", effect="NoSchedule")


def test_nodes_that_come_up_with_a_taint_are_not_told_to_be_not_ready_for_ever(scene):
    scene.nodes(ready=False)
    entry = scene.waits("train")
    scene.after(0)
    assert "not ready" in entry.refused.message
    scene.nodes(ready=True, taints=[TAINT])
    scene.after(2)
    assert scene.scheduler.next_time is not None, "the text is that of another moment"
    scene.after(scene.scheduler.next_time - scene.clock.seconds)
    assert "free of taints" in entry.refused.message
    assert "not ready" not in entry.refused.message


def test_a_reason_that_holds_on_is_not_made_again_and_again(scene):
    scene.nodes(ready=False)
    entry = scene.waits("train")
    scene.after(0)
    explained = entry.refused_at
    for _ in range(20):
        scene.after(30)
    assert entry.refused_at == explained, "nothing happened"


def test_who_wants_the_same_hears_why_the_first_waits_now(scene):
    scene.nodes(ready=False)
    first, second = scene.waits("one"), scene.waits("two")
    scene.after(0)
    assert "Job ns/one" in second.refused.message
    assert "not ready" in second.refused.message
    scene.nodes(ready=True, taints=[TAINT])
    scene.after(11)
    assert "free of taints" in first.refused.message
    scene.after(BEHIND)
    scene.after(0)
    assert "free of taints" in second.refused.message


def test_who_was_behind_one_that_is_gone_hears_what_it_waits_for_itself(scene):
    scene.nodes(ready=False)
    first, second = scene.waits("one"), scene.waits("two")
    scene.after(0)
    scene.world.memory.queues.remove_workload(scene.world.memory.state, first.key)
    scene.nodes(ready=True, taints=[TAINT])
    scene.after(11)
    scene.after(BEHIND)
    assert "comes before it" not in second.refused.message
    assert "free of taints" in second.refused.message


def test_texts_that_may_be_made_again_are_made_in_turns_of_namespaces(scene):
    stale = scene.scheduler._stale
    for number in range(1000):
        stale.explain_again(f"mallory/{number}", Refusal(Reason.DOES_NOT_FIT, "full"), scene.clock.now())
    stale.explain_again("alice/honest", Refusal(Reason.DOES_NOT_FIT, "full"), scene.clock.now())
    made = [key for key, _ in stale.to_explain(scene.clock.now())]
    assert len(made) <= EXPLAINED
    assert made[1] == "alice/honest"
    assert stale.next_report_time() == scene.clock.now(), "the others come in the next cycles"


def test_why_one_gets_no_more_pods_is_not_put_into_words_again_before_it_is_looked_at_again(scene):
    job = make_job("train", parallelism=1)
    scene.world.put("job", job)
    scene.world.admit(job)
    entry, queues = entry_of(scene.world, job), scene.world.memory.queues
    queues.wish(entry.key, {"main": 9})
    scene.after(0)
    explained = entry.refused_at
    assert entry.refused.reason is Reason.NEVER_FITS
    for _ in range(5):
        scene.after(30)
    assert entry.refused_at == explained, "else thousands have theirs made every ten seconds"
    queues.pending.room_freed(["gpu"])
    scene.after(30)
    assert entry.refused_at == scene.clock.monotonic()
