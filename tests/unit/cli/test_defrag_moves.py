"""Carrying out a plan of `topogate defrag`: what is asked, in which order, and what is left behind."""

import asyncio

import pytest

from cli.defrag import run as running
from cli.defrag.run import MoveOutcome, Run, WantedNodes
from crds.constants import MOVE_TO
from kube.errors import NotFound
from kube.objects import Condition, ObjectMeta
from kube.workloads import ObservedStatus
from ungater.model.conditions import MOVE_REFUSED, MOVING, PODS_READY
from ungater.model.move_request import parse

A, B = WantedNodes("ns/a", "ns/job-a", {"main": ("n1",)}), WantedNodes("ns/b", "ns/job-b", {"main": ("n2",)})


class Clock:
    time = 1_800_000_000.0

    def now(self):
        self.time += 1.0
        return self.time

    def monotonic(self):
        return self.now()


class Server:
    """Answers requests as ``answers`` say: by workload a list of (status, reason, message), the last one stays."""

    def __init__(self, **answers):
        self.answers = answers
        self.notes = {}
        self.asked = []

    async def patch(self, _resource, name, _namespace, *, body):
        if name not in self.answers:
            raise NotFound(404, "NotFound", name)
        text = body["metadata"]["annotations"][MOVE_TO]
        self.notes[name] = text
        if text is not None:
            self.asked.append((name, parse(text)))

    async def get(self, _resource, name, _namespace, **decoded_as):
        answers = self.answers[name]
        status, reason, message, ready = answers[0] if len(answers) == 1 else answers.pop(0)
        mark = next(request.mark for asked, request in reversed(self.asked) if asked == name)
        refused = reason in {"DoesNotFit", "MovesUsedUp", "NothingToMove"}
        found = (
            Condition(
                type=MOVE_REFUSED if refused else MOVING, status=status, reason=reason, message=f"{message} {mark}"
            ),
            Condition(type=PODS_READY, status=ready, reason="x", message="m"),
        )
        return decoded_as["type"](metadata=ObjectMeta(name=name), status=ObservedStatus(conditions=found))


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(running, "POLL", 0.0)


def carried(server, *steps, patience=100.0):
    said = []
    done = asyncio.run(Run(server, said.append, Clock(), patience).steps(steps))
    assert all(text is None for text in server.notes.values()), "no request is left behind"
    return done, said


BEGUN, MOVED = ("True", "Defrag", "it is moved", "False"), ("False", "Moved", "it was moved", "True")
WAITS = ("False", "Moved", "it was moved", "False")
REFUSED = ("True", "DoesNotFit", "no room", "True")


def test_one_after_the_other_and_the_next_when_all_pods_run():
    server = Server(a=[BEGUN, BEGUN, WAITS, WAITS, MOVED], b=[MOVED])
    done, said = carried(server, [A], [B])
    assert done
    assert said == ["step 1: ns/job-a moved", "step 2: ns/job-b moved"]
    assert server.answers["a"] == [MOVED], "it waited until all pods ran"
    assert [name for name, _ in server.asked] == ["a", "b"]
    assert len({request.id for _, request in server.asked}) == 2
    assert server.asked[0][1].nodes == {"main": frozenset({"n1"})}


def test_what_has_no_room_yet_is_tried_again_after_the_others_of_its_step():
    server = Server(a=[REFUSED, BEGUN, MOVED], b=[MOVED])
    done, said = carried(server, [A, B])
    assert done
    assert [name for name, _ in server.asked] == ["a", "b", "a"]
    assert "no room" in said[0]


def test_where_nothing_of_a_step_goes_on_nothing_after_it_is_begun():
    server = Server(a=[REFUSED], b=[MOVED])
    done, said = carried(server, [A], [B])
    assert not done
    assert [name for name, _ in server.asked] == ["a"]
    assert said[-1] == "step 1 is not done, and nothing after it is begun"


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (("True", "MovesUsedUp", "no more", "True"), MoveOutcome.USED_UP),
        (("True", "Defrag", "it is moved", "False"), MoveOutcome.LATE),
    ],
)
def test_these_end_all_of_it_at_once(answer, outcome):
    server = Server(a=[answer], b=[MOVED])
    done, said = carried(server, [A, B], patience=5.0)
    assert not done
    assert str(outcome) in said[0]
    assert [name for name, _ in server.asked] == ["a"]


def test_one_that_a_budget_put_back_is_told_as_that():
    blocked = ("False", "EvictionBlocked", "a budget refuses", "True")
    done, said = carried(Server(a=[BEGUN, blocked]), [A])
    assert not done
    assert said[0].startswith("step 1: ns/job-a was put back: a budget refuses")


def test_one_that_was_evicted_meanwhile_is_not_told_as_moved():
    done, said = carried(Server(a=[BEGUN, ("False", "Evicted", "it gave back what it held", "True")]), [A])
    assert not done
    assert said[0].startswith("step 1: ns/job-a is not moved: it gave back")


def test_one_that_is_gone_or_there_already_is_done():
    done, said = carried(Server(b=[("True", "NothingToMove", "there", "True")]), [A, B])
    assert done
    assert said == ["step 1: ns/job-a is gone", "step 1: ns/job-b is there already"]


def test_an_interruption_leaves_no_request_behind():
    server = Server(a=[("False", "Other", "of before", "True")])
    server.get = lambda *_args, **_kw: asyncio.Event().wait()

    async def interrupted():
        task = asyncio.create_task(Run(server, lambda _: None, Clock(), 9.0).steps([[A]]))
        while not server.asked:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(interrupted())
    assert server.notes == {"a": None}


def test_an_answer_to_an_earlier_request_is_none():
    server = Server(a=[BEGUN])
    stale = Condition(type=MOVING, status="False", reason="Moved", message="it was moved (request 0)")

    async def get(_resource, name, _namespace, **decoded_as):
        return decoded_as["type"](metadata=ObjectMeta(name=name), status=ObservedStatus(conditions=(stale,)))

    server.get = get
    done, said = carried(server, [A])
    assert not done
    assert "did not answer" in said[0]
