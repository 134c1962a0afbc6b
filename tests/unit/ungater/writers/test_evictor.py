"""Evictions under way: what is tried again, and when."""

import asyncio
from types import SimpleNamespace

import msgspec
import pytest
from support.owned import make_pod

from clock import SYSTEM, Clock
from kube.errors import Conflict, ConnectionFailed, TooManyRequests
from kube.informer import Event, EventKind
from kube.objects import Job, key
from ungater.guard import Guard
from ungater.metrics import ControllerMetrics
from ungater.model.conditions import timestamp
from ungater.writers.evictor import GONE_AFTER, TRACKING, UNASKED, Evictor


def test_a_look_before_the_next_attempt_is_due_asks_for_another_then():
    now, asked = [100.0], []
    evictions = Evictor(
        None,
        concurrency=1,
        requeue=lambda uid, after: asked.append((uid, after)),
        recorder=None,
        metrics=ControllerMetrics(),
        guard=Guard(SYSTEM, [].append),
        clock=Clock(SYSTEM.now, lambda: now[0]),
        job=lambda _: None,
    )
    pod = make_pod(gated=False, node="n1")
    evictions.request_eviction("job", pod, "makes room")
    evictions._handle_refusal(evictions._queue.get_nowait(), ConnectionFailed("no answer"))
    ((_, delay),) = asked
    now[0] += 0.25
    evictions.request_eviction(
        "job", pod, "makes room"
    )  # a look for another reason takes the place of the one asked for
    assert asked[1:] == [("job", pytest.approx(delay - 0.25))]
    assert evictions._queue.empty()
    now[0] += delay
    evictions.request_eviction("job", pod, "makes room")
    assert evictions._queue.get_nowait().pod is pod


def test_one_that_nobody_asks_for_any_more_is_forgotten_and_none_that_is_tried():
    now = [100.0]
    made = Evictor(
        None,
        concurrency=1,
        requeue=lambda *_: None,
        recorder=None,
        metrics=ControllerMetrics(),
        guard=Guard(SYSTEM, [].append),
        clock=Clock(SYSTEM.now, lambda: now[0]),
        job=lambda _: None,
    )
    for name in ("a", "b"):
        made.request_eviction("job", make_pod(name, gated=False, node="n1"), "makes room")
    made._handle_refusal(made._queue.get_nowait(), ConnectionFailed("no answer"))
    for seconds, left in ((60.0, 2), (UNASKED + 60.0, 1)):
        now[0] += seconds
        made.sweep()
        assert len(made._tries) == left
    made._handle_refusal(made._queue.get_nowait(), ConnectionFailed("no answer"))
    now[0] += UNASKED + 60.0
    made.sweep()
    assert (made._tries, made._of) == ({}, {})


class Conflicting:
    """Refuses each eviction with a conflict that is none of the pod's identity."""

    async def evict(self, *_args, **_options):
        raise Conflict(409, "Conflict", "the object has been modified; please apply your changes to the latest version")


async def test_after_a_conflict_the_pod_is_looked_for_again():
    asked = asyncio.Queue()
    evictions = Evictor(
        Conflicting(),
        concurrency=1,
        requeue=lambda uid, after: asked.put_nowait((uid, after)),
        recorder=None,
        metrics=ControllerMetrics(),
        guard=Guard(SYSTEM, [].append),
        clock=SYSTEM,
        job=lambda _: None,
    )
    running = asyncio.create_task(evictions.run())
    for _ in range(2):
        evictions.request_eviction("job", make_pod(gated=False, node="n1"), "makes room")
        assert await asyncio.wait_for(asked.get(), 5) == ("job", GONE_AFTER)
    running.cancel()


WALL = 1_800_000_000.0


class Asked:
    """Notes what is asked for; evictions are refused by a budget."""

    def __init__(self):
        self.calls = []
        self.jobs = {}
        self.refuses = True

    async def evict(self, name, _namespace, *, grace_period, dry_run, **_options):
        self.calls.append(("try" if dry_run else "evict", name, grace_period))
        if self.refuses:
            raise TooManyRequests(429, "TooManyRequests", "a budget forbids it")

    async def patch(self, _resource, name, _namespace, *, body, **_options):
        (way,) = body["metadata"].keys() - {"uid"}
        self.calls.append(("back" if way == "finalizers" else "off", name, *body["metadata"][way]))

    async def delete(self, _resource, name, _namespace, *, grace_period, **_options):
        self.calls.append(("delete", name, grace_period))


@pytest.fixture
async def asked():
    client = Asked()
    recorder = SimpleNamespace(event=lambda *_: None)
    made = Evictor(
        client,
        concurrency=1,
        requeue=lambda *_: None,
        recorder=recorder,
        metrics=ControllerMetrics(),
        guard=Guard(SYSTEM, [].append),
        clock=Clock(lambda: WALL, SYSTEM.monotonic),
        job=client.jobs.get,
    )
    running = asyncio.create_task(made.run())
    client.evictions = made
    yield client
    running.cancel()


async def settled(client, calls):
    for _ in range(100):
        if len(client.calls) >= calls:
            break
        await asyncio.sleep(0)
    return client.calls


def stops_slowly(left=None):
    pod = make_pod("slow", gated=False, node="n1", spec={"terminationGracePeriodSeconds": 2_592_000})
    if left is None:
        return pod
    return msgspec.structs.replace(
        pod, metadata=msgspec.structs.replace(pod.metadata, deletion_timestamp=timestamp(WALL + left))
    )


async def test_a_budget_is_overridden_at_once_where_that_is_asked_for(asked):
    asked.evictions.request_eviction("job", make_pod("p", gated=False, node="n1"), "makes room")
    assert await settled(asked, 1) == [("evict", "p", None)]
    await asyncio.sleep(0)
    assert asked.evictions.blocked("job") is not None
    asked.evictions.request_eviction("job", make_pod("p", gated=False, node="n1"), "makes room")
    asked.evictions.request_eviction("job", make_pod("p", gated=False, node="n1"), "quota", overriding=True)
    assert (await settled(asked, 2))[1:] == [("delete", "p", None)]


async def test_a_pod_may_not_take_longer_to_stop_than_it_is_given(asked):
    asked.evictions.request_eviction("job", stops_slowly(), "quota", most_grace=600)
    assert await settled(asked, 1) == [("evict", "slow", 600)]
    asked.evictions.request_eviction("job", stops_slowly(left=2_000_000.0), "quota", most_grace=600)
    assert (await settled(asked, 2))[1:] == [("delete", "slow", 600)]
    asked.evictions.request_eviction("job", stops_slowly(left=500.0), "quota", most_grace=600)
    asked.evictions.request_eviction("job", stops_slowly(left=2_000_000.0), "makes room")
    assert len(await settled(asked, 3)) == 2, "one that stops in time, or whose owner owes nothing, is left alone"


# -- podReplacementPolicy: what is finished in the grace period of an eviction (Kubernetes 1.37) -----------------------


def of_job(name="p", phase="Running"):
    pod = make_pod(name, gated=False, node="n1", phase=phase)
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, finalizers=(TRACKING,)))


def told(evictions, pod, *, gone=False):
    event = Event(EventKind.DELETED, key(pod), pod, None) if gone else Event(EventKind.MODIFIED, key(pod), pod, pod)
    evictions.follow_evicted(event)


def replaces(asked, policy, **spec):
    pod = of_job()
    body = {
        "metadata": {"uid": pod.metadata.owner_references[0].uid},
        "spec": {"parallelism": 2, "podReplacementPolicy": policy, **spec},
    }
    asked.jobs[f"ns/{pod.metadata.owner_references[0].name}"] = msgspec.json.decode(msgspec.json.encode(body), type=Job)
    asked.refuses = False
    asked.evictions.request_eviction("job", pod, "makes room")


OFF = ("off", "p", TRACKING)


async def test_a_pod_counts_as_failed_at_once_by_the_default_policy_so_it_leaves_the_accounting_before(asked):
    replaces(asked, "TerminatingOrFailed")
    assert await settled(asked, 3) == [("try", "p", None), OFF, ("evict", "p", None)]
    told(asked.evictions, of_job(phase="Failed"))
    assert len(await settled(asked, 4)) == 3


@pytest.mark.parametrize(("phase", "calls"), [("Succeeded", []), ("Failed", [OFF])])
async def test_with_the_policy_failed_it_is_counted_where_it_succeeds_and_not_where_it_fails(asked, phase, calls):
    replaces(asked, "Failed")
    assert await settled(asked, 1) == [("evict", "p", None)]
    told(asked.evictions, of_job())
    told(asked.evictions, of_job(phase=phase))
    assert (await settled(asked, 2))[1:] == calls
    told(asked.evictions, of_job(phase=phase))
    assert (await settled(asked, 3))[1:] == calls, "once"


async def test_a_pod_that_was_not_evicted_counts_as_ever(asked):
    replaces(asked, "Failed")
    await settled(asked, 1)
    told(asked.evictions, of_job(), gone=True)
    for phase in ("Failed", "Succeeded"):
        told(asked.evictions, of_job(phase=phase))
    asked.refuses = True
    asked.evictions.request_eviction(
        "job", msgspec.structs.replace(of_job(), metadata=of_job("q").metadata), "makes room"
    )
    await settled(asked, 2)
    told(asked.evictions, of_job("q", phase="Failed"))
    assert await settled(asked, 3) == [("evict", "p", None), ("evict", "q", None)], "a budget kept it"


async def test_one_that_is_deleted_whatever_budgets_say_leaves_the_accounting_before(asked):
    """A deletion is no disruption that a podFailurePolicy may ignore."""
    replaces(asked, "Failed")
    await settled(asked, 1)
    asked.evictions.request_eviction("job", of_job("q"), "quota", overriding=True)
    assert (await settled(asked, 4))[1:] == [("delete", "q", None), ("off", "q", TRACKING), ("delete", "q", None)]


async def test_it_says_whether_a_pod_was_let_go_that_is_not_seen_to_go_yet(asked):
    pod, evictions = make_pod(gated=False, node="n1"), asked.evictions
    assert not evictions.has_granted("job")
    evictions.request_eviction("job", pod, "makes room")
    assert not evictions.has_granted("job"), "nobody has answered yet"
    await settled(asked, 1)
    await asyncio.sleep(0)
    assert (evictions.has_granted("job"), evictions.blocked("job") is None) == (False, False)
    asked.refuses = False
    evictions.request_eviction("job", make_pod("other", gated=False, node="n1"), "makes room")
    await settled(asked, 2)
    await asyncio.sleep(0)
    assert evictions.has_granted("job"), "of several pods, one was let go"
    ends = msgspec.structs.replace(make_pod("other", node="n1").metadata, deletion_timestamp=timestamp(WALL + 30))
    evictions.request_eviction("job", msgspec.structs.replace(pod, metadata=ends), "makes room")
    assert not evictions.has_granted("job"), "it goes"
