"""`topogate hold`, `release` and `requeue`: whose Workloads are meant, and what is written on them."""

import asyncio
from datetime import UTC, datetime

import msgspec
import pytest
from typer.testing import CliRunner

from cli import hold
from cli.cluster.owner_names import parse_owner
from cli.hold import Change, Selection, change_all, is_of
from cli.main import app
from cli.output import Failure
from crds.names import workload_name
from kube.errors import Forbidden, NotFound
from kube.queues import LocalQueue
from kube.resources import LOCAL_QUEUES, MUTATING_WEBHOOKS, WORKLOADS
from kube.workloads import ObservedStatus, WorkloadObject

ADMITTED = {"admission": {"clusterQueue": "gpu"}}
FINISHED = {"conditions": [{"type": "Finished", "status": "True", "reason": "Succeeded"}]}
EVICTED = {"type": "Evicted", "status": "True", "reason": "Deactivated"}


def workload(name, kind="Job", *, active=True, queue="team", status=None, part=""):
    """The Workload of an owner; ``part``: one of several of one owner."""
    owner = [{"kind": kind, "name": name, "uid": f"u-{name}", "controller": True}] if kind != "PodGroup" else []
    whole = workload_name(kind, f"{name}-{part}" if part else name, f"{kind}{name}{part}")
    body = {
        "metadata": {"name": whole, "namespace": "ns", "uid": f"w-{whole}", "ownerReferences": owner},
        "spec": {"active": active, "queueName": queue},
        "status": status or {},
    }
    return msgspec.convert(body, WorkloadObject)


class Client:
    """Workloads of one namespace, and a controller that evicts what is inactive at the second look."""

    def __init__(self, *there, evicts=True, refuses=None, elsewhere=(), queues=()):
        self.elsewhere, self.queues = elsewhere, queues
        self.there = {one.metadata.name: one for one in there}
        self.evicts, self.refuses, self.wrote, self.looks = evicts, refuses, [], 0

    async def list(self, resource, namespace=None, **how):
        if resource == LOCAL_QUEUES:
            return [msgspec.convert({"metadata": {"name": name}}, LocalQueue) for name in self.queues]
        assert how == {"type": WorkloadObject}
        if namespace is None and isinstance(self.elsewhere, Exception):
            raise self.elsewhere
        return [*self.there.values(), *(self.elsewhere if namespace is None else ())]

    def server_time(self):
        return datetime(2026, 11, 28, tzinfo=UTC)

    async def get(self, resource, name, namespace=None, **_how):
        if resource == MUTATING_WEBHOOKS:
            return {}
        if resource != WORKLOADS:
            raise NotFound(404, "NotFound", f"no {name} in {namespace}")
        self.looks += 1
        found = self.there[name]
        if self.evicts and self.looks > 1 and not found.spec.active:
            status = {**ADMITTED, "conditions": [EVICTED]}
            found = msgspec.structs.replace(found, status=msgspec.convert(status, ObservedStatus))
        return found

    async def patch(self, _resource, name, _namespace, *, body, dry_run):
        if self.refuses is not None:
            raise self.refuses
        active, found = body["spec"]["active"], self.there[name]
        assert body["metadata"] == {"uid": found.metadata.uid}
        self.wrote.append((name.rpartition("-")[0], active, dry_run))
        if not dry_run:
            self.there[name] = msgspec.structs.replace(found, spec=msgspec.structs.replace(found.spec, active=active))


def changed(client, change, *names, queue=None, every=False, dry_run=False):
    lines = []
    selection = Selection(names, queue, every)
    asyncio.run(change_all(client, change, selection, "ns", lines.append, dry_run=dry_run))
    return lines


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(hold, "POLL", 0.0)


def test_one_that_waits_and_one_that_runs_are_held():
    client = Client(workload("a"), workload("b", status=ADMITTED), workload("c"))
    assert changed(client, Change.HOLD, "a", "job/b") == [
        "Job a: on hold",
        "Job b: on hold; its pods are evicted",
    ]
    assert client.wrote == [("job-a", False, False), ("job-b", False, False)]
    assert changed(client, Change.HOLD, "a") == ["Job a: is on hold already"]
    assert changed(client, Change.RELEASE, "a", "c") == ["Job a: released; it waits again", "Job c: is not on hold"]
    assert client.wrote[2:] == [("job-a", True, False)]


def test_one_that_runs_is_active_again_as_soon_as_its_eviction_has_begun():
    client = Client(workload("a", status=ADMITTED))
    assert changed(client, Change.REQUEUE, "a") == ["Job a: requeued; its pods are evicted, and it waits again"]
    assert client.wrote == [("job-a", False, False), ("job-a", True, False)]
    assert client.looks == 2


def test_without_an_answer_it_is_active_again_and_runs_on(monkeypatch):
    monkeypatch.setattr(hold, "ANSWER", 0.0)
    client = Client(workload("a", status=ADMITTED), evicts=False)
    with pytest.raises(Failure, match=r"Job a: the controller has not begun .* `topogate doctor`"):
        changed(client, Change.REQUEUE, "a")
    assert client.wrote == [("job-a", False, False), ("job-a", True, False)]


@pytest.mark.parametrize(
    ("change", "fields", "says"),
    [
        (Change.HOLD, {"status": FINISHED}, "has finished already"),
        (Change.RELEASE, {"status": FINISHED, "active": False}, "has finished already"),
        (Change.REQUEUE, {"status": FINISHED}, "has finished already"),
        (Change.REQUEUE, {}, "waits already"),
        (Change.REQUEUE, {"active": False}, "is on hold: `topogate release` has it wait again"),
    ],
)
def test_where_nothing_is_to_be_done_nothing_is_written(change, fields, says):
    client = Client(workload("a", **fields))
    assert changed(client, change, "a") == [f"Job a: {says}"]
    assert client.wrote == []


def test_a_dry_run_is_checked_by_the_server_and_writes_nothing():
    client = Client(workload("a", status=ADMITTED))
    (line,) = changed(client, Change.REQUEUE, "a", dry_run=True)
    assert line.endswith("(dry run)")
    assert client.wrote == [("job-a", False, True)]


def test_all_of_a_namespace_or_of_a_queue():
    client = Client(workload("a"), workload("b", queue="other"), workload("c"), queues=["none"])
    assert changed(client, Change.HOLD, queue="team") == ["Job a: on hold", "Job c: on hold"]
    assert changed(client, Change.RELEASE, every=True) == [
        "Job a: released; it waits again",
        "Job b: is not on hold",
        "Job c: released; it waits again",
    ]
    assert changed(client, Change.HOLD, queue="none") == ["no job in queue none of namespace ns"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("train", ["Job", "JobSet"]),
        ("jobset/train", ["JobSet"]),
        ("lws/serve", ["0", "1"]),
        ("serve-1", ["1"]),
        ("deploy/web", ["ReplicaSet"]),
        ("ring", ["PodGroup"]),
        ("podgroup/ring", ["PodGroup"]),
        ("job/ring", []),
        ("trai", []),
        ("serve-10", []),
        (f"workload/{workload_name('Job', 'train', 'Jobtrain')}", ["Job"]),
    ],
)
def test_whose_workloads_are_meant(text, found):
    there = {
        "Job": workload("train"),
        "JobSet": workload("train", "JobSet"),
        "0": workload("serve", "LeaderWorkerSet", part="0"),
        "1": workload("serve", "LeaderWorkerSet", part="1"),
        "ReplicaSet": workload("web-7d9f", "ReplicaSet"),
        "PodGroup": workload("ring", "PodGroup"),
    }
    assert [what for what, one in there.items() if is_of(one, *parse_owner(text))] == found


def test_a_name_that_nobody_has_or_several_have_is_refused_before_anything_is_written():
    client = Client(workload("train"), workload("train", "JobSet"), workload("other"))
    with pytest.raises(Failure, match="train: which of them: Job train, JobSet train"):
        changed(client, Change.HOLD, "other", "train")
    with pytest.raises(Failure, match="nobody: there is no such job in namespace ns"):
        changed(client, Change.HOLD, "other", "nobody")
    assert client.wrote == []


def test_where_nobody_leads_it_is_said_that_a_new_job_is_not_known_yet(capsys):
    with pytest.raises(Failure, match="no such job"):
        changed(Client(), Change.HOLD, "new")
    assert "Warning: no ungater leads, so nothing new is placed" in capsys.readouterr().err


def test_groups_of_one_owner_are_told_apart():
    client = Client(*(workload("serve", "LeaderWorkerSet", part=part) for part in "01"))
    lines = changed(client, Change.HOLD, "lws/serve")
    assert [line.partition("-serve-")[2][0] for line in lines] == ["0", "1"]


def test_who_may_not_patch_is_told_what_to_ask_for():
    client = Client(workload("a"), refuses=Forbidden(403, "Forbidden", "no"))
    with pytest.raises(
        Failure, match=r"may not patch Workloads .* in namespace ns: ask for the role edit .*rolebinding"
    ):
        changed(client, Change.HOLD, "a")


def test_one_that_is_deleted_meanwhile_stops_nobody():
    client = Client(workload("a"), workload("b"), refuses=NotFound(404, "NotFound", "no"))
    assert changed(client, Change.HOLD, every=True) == ["Job a: is gone", "Job b: is gone"]


@pytest.mark.parametrize(
    ("args", "found"),
    [([], "none of the three"), (["a", "--all"], "more than one"), (["--all", "--queue", "q"], "more than one")],
)
def test_jobs_are_named_in_one_way(args, found):
    done = CliRunner().invoke(app, ["hold", *args])
    assert isinstance(done.exception, Failure)
    assert str(done.exception) == f"expected names of jobs, or --queue QUEUE, or --all; found {found}"


def in_other(name):
    found = workload(name)
    return msgspec.structs.replace(found, metadata=msgspec.structs.replace(found.metadata, namespace="other"))


def test_in_the_wrong_namespace_the_right_one_is_told_to_who_may_look():
    with pytest.raises(Failure, match=r"no such job in namespace ns .*; but there is Job a in other \(-n other\)"):
        changed(Client(elsewhere=[in_other("a"), in_other("b")]), Change.HOLD, "a")
    with pytest.raises(Failure, match=r"lists what there is$"):
        changed(Client(elsewhere=Forbidden(403)), Change.HOLD, "a")


def test_a_queue_that_does_not_exist_is_said_with_what_was_meant():
    with pytest.raises(Failure, match=r"no LocalQueue trainning in namespace ns; did you mean training\?"):
        changed(Client(queues=["training"]), Change.HOLD, queue="trainning")
    (line,) = changed(Client(queues=["training"]), Change.HOLD, queue="training")
    assert line == "no job in queue training of namespace ns"


def test_a_job_may_be_named_by_its_workload():
    name = workload("a").metadata.name
    assert changed(Client(workload("a")), Change.HOLD, name) == ["Job a: on hold"]
