"""What others create and change while queues move."""

import asyncio

import msgspec
import pytest
from msgspec.structs import replace
from support.migrating import found, of_kueue

from cli.migrate.moves.backup import Backups
from cli.migrate.moves.handover import Handover
from cli.migrate.moves.meanwhile import (
    find_homeless,
    find_lost_backups,
    find_newcomers,
    require_queues,
    require_unchanged,
)
from cli.migrate.moves.phase_walk import MoveOptions
from cli.migrate.moves.sight import MoveSight, make_view
from cli.migrate.moves.steps import LinkedQueue, MoveStep, QueueLinks
from cli.migrate.moves.take_back import TakeBack
from cli.migrate.source_objects import KueueObjectsRead
from cli.output import Failure
from kube.errors import Conflict
from kube.resources import Resource

STEP = MoveStep(("q",), ("x",))
OPTIONS = MoveOptions("t", "kueue-system")
POD_SET = {"kueue.x-k8s.io/podset": "main"}


def view(*links, queues=("q", "r")):
    return QueueLinks({one: {} for one in queues}, [LinkedQueue(*one) for one in links], {}, frozenset())


def sight(*queues, labels=None):
    every = found(*(of_kueue("ClusterQueue", one, {}, meta={"uid": f"u-{one}"}) for one in queues))
    live = {one.name: one.body for one in every}
    kinds = {"Workload": Resource("kueue.x-k8s.io", "v1beta2", "workloads", "Workload")}
    return MoveSight(
        kinds, KueueObjectsRead(every, []), live, make_view(every, {}), Backups("t"), labels or {"x": {}}, {}
    )


def test_a_queue_that_is_deleted_on_the_way_is_told_and_is_no_traceback():
    require_queues(sight("q"), STEP)
    with pytest.raises(Failure, match="ClusterQueue q of Kueue was deleted meanwhile: what was done so far stays"):
        require_queues(sight("r"), STEP)


def test_a_local_queue_of_another_namespace_that_came_meanwhile_is_told():
    assert [*find_newcomers(view(("x", "l", "q")), STEP)] == []
    (text,) = find_newcomers(view(("x", "l", "q"), ("y", "late", "q")), STEP)
    assert text.startswith("LocalQueue y/late of Kueue came meanwhile, and waits on hold there: run")
    assert text.endswith("`topogate migrate kueue --move q` again")


def test_a_local_queue_that_leads_out_of_the_step_is_told_with_the_queue_that_has_not_moved():
    (text,) = find_newcomers(view(("x", "l", "q"), ("x", "late", "r")), STEP)
    assert text.startswith(
        "LocalQueue x/late of Kueue came meanwhile, and leads to ClusterQueue r, which has not moved"
    )


def local(name, queue):
    return {"metadata": {"namespace": "x", "name": name}, "spec": {"clusterQueue": queue}}


def test_a_local_queue_of_ours_whose_queue_admits_on_keeps_its_namespace_here():
    seen = view(("x", "l", "q"))
    assert [*find_homeless([local("l", "q")], seen, STEP)] == []
    (text,) = find_homeless([local("l", "q"), local("new", "own")], seen, STEP)
    assert text.startswith("LocalQueue x/new of topogate.dev leads to ClusterQueue own, which does not go back")
    (text,) = find_homeless([local("new", "q")], seen, STEP)
    assert text.startswith("LocalQueue x/new of topogate.dev has no counterpart in Kueue")


def test_a_queue_whose_backup_was_deleted_is_not_saved_as_it_is_on_hold():
    seen, free = sight("q", labels={"x": {"topogate.dev/served": "true"}}), {"spec": {"stopPolicy": "None"}}
    held = {"q": {**seen.live["q"], "spec": {"stopPolicy": "Hold"}}}
    (text,) = find_lost_backups(replace(seen, live=held, ours={"q": free}), STEP)
    assert text.startswith("ClusterQueue q has moved, and ConfigMap t/topogate-migration has no backup of it")
    assert [*find_lost_backups(replace(seen, live=held), STEP)] == []
    assert [*find_lost_backups(replace(seen, ours={"q": free}), STEP)] == [], "Kueue's goes on, so it is as it was"
    assert [*find_lost_backups(replace(seen, live=held, ours={"q": free}, labels={"x": {}}), STEP)] == []


def job_set(uid="u", version="2"):
    gates = {"schedulingGates": [{"name": "kueue.x-k8s.io/topology"}]}
    template = {"spec": {"template": {"metadata": {}, "spec": gates}}}
    meta = {"name": "train", "namespace": "x", "uid": uid, "resourceVersion": version}
    return {"metadata": meta, "spec": {"suspend": True, "replicatedJobs": [{"name": "w", "template": template}]}}


@pytest.mark.parametrize(("uid", "patched"), [("u", ["2", None]), ("another", [])])
def test_a_job_set_that_changed_meanwhile_is_read_again_and_loses_the_gate(uid, patched):
    class Changed:
        def __init__(self):
            self.versions = []

        async def get(self, *_):
            return job_set(uid=uid)

        async def patch(self, *_, body, **__):
            version = body["metadata"].get("resourceVersion")
            if version == "1":
                raise Conflict(409, "Conflict", "the object has been modified")
            self.versions.append(version)

    server, told = Changed(), []
    asyncio.run(
        TakeBack(server, OPTIONS, told.append).wake_job({"kind": "JobSet", **job_set(version="1")}, placed=True)
    )
    assert server.versions == patched
    assert told == []


class ApiServer:
    """Answers lists with what is there, and notes each patch."""

    def __init__(self, **there):
        self.there, self.patches = there, []

    async def list(self, resource, namespace=None, *, type=dict, **_):  # noqa: A002
        return [msgspec.convert(one, type) for one in self.there.get(resource.plural, ())]

    async def patch(self, resource, name, namespace=None, *, body, **_):
        self.patches.append((resource.kind, name, body))


def test_a_label_that_another_command_takes_off_is_not_put_on_again(monkeypatch):
    monkeypatch.setattr("cli.migrate.moves.handover.STILL_SECONDS", 0)
    server, told = ApiServer(), []
    move = Handover(server, OPTIONS, told.append)
    asyncio.run(move.serve_namespaces(["x"]))
    with pytest.raises(Failure, match=r"namespace x was labelled topogate\.dev/served by this command, and somebody"):
        asyncio.run(move.serve_namespaces(["w", "x"]))
    assert len(server.patches) == 1


def test_a_label_that_comes_back_is_not_taken_off_past_what_was_started_meanwhile(monkeypatch):
    monkeypatch.setattr("cli.migrate.moves.take_back.PARTED_SECONDS", 0)
    server = ApiServer()
    back = TakeBack(server, OPTIONS, print)
    asyncio.run(back.unserve_namespaces(["x"]))
    with pytest.raises(Failure, match=r"namespace x was freed of the label topogate\.dev/served by this command"):
        asyncio.run(back.unserve_namespaces(["x"]))
    assert len(server.patches) == 1
    require_unchanged(["y"], {"x"}, label="labelled")


def gated_pod():
    meta = {"name": "p", "namespace": "x", "labels": POD_SET, "uid": "u"}
    return {"metadata": meta, "spec": {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}}


def test_a_pod_that_comes_behind_kueues_gate_after_the_hold_stops_the_move_at_once():
    server = ApiServer(pods=[gated_pod()])
    move, undone = Handover(server, OPTIONS, print), []

    async def undo(step):
        undone.append(step)
        return "its queues go on"

    move.undo_hold = undo
    with pytest.raises(Failure, match="nothing was moved; its queues go on:\npod x/p waits behind Kueue's gate"):
        asyncio.run(move.wait_quiet(sight("q"), STEP))
    assert undone == [STEP]


def test_a_pod_that_came_behind_kueues_gate_just_before_the_label_is_told():
    told = []
    move = Handover(ApiServer(pods=[gated_pod()]), OPTIONS, told.append)
    asyncio.run(move._tell_left(sight("q"), STEP))
    (text,) = told
    assert text.startswith("note: pod x/p waits behind Kueue's gate")
