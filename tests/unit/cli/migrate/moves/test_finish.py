"""What is Kueue's and is deleted in the end, and what keeps it there."""

import asyncio

import msgspec
import pytest
from support.migrating import found, of_kueue

from cli.migrate.moves.backup import Backups
from cli.migrate.moves.finish import (
    KueueRemoval,
    RemovedObject,
    describe_removed,
    find_stuck,
    find_unmoved,
    find_untaken,
    is_under_way,
    is_webhook_of_kueue,
    list_concerned,
    sort_kinds,
)
from cli.migrate.moves.phase_walk import MoveOptions
from cli.migrate.moves.sight import MoveSight, make_view
from cli.migrate.source_objects import KueueObjectsRead
from cli.output import Failure
from kube.objects import Pod
from kube.resources import CUSTOM_RESOURCE_DEFINITIONS, DEPLOYMENTS, Resource
from kube.workloads import WorkloadObject
from ungater.model.kueue_objects import KueueWorkload

SERVED = {"topogate.dev/served": "true"}


def sight(**labels):
    every = found(
        of_kueue("ClusterQueue", "q", {}),
        of_kueue("LocalQueue", "l", {"clusterQueue": "q"}, namespace="x"),
        of_kueue("LocalQueue", "l", {"clusterQueue": "q"}, namespace="y"),
    )
    return MoveSight({}, KueueObjectsRead(every, []), {}, make_view(every, {}), Backups("t"), labels, {})


def workload(namespace, *true):
    status = {"conditions": [{"type": one, "status": "True"} for one in true]}
    return msgspec.convert({"metadata": {"name": "w", "namespace": namespace}, "status": status}, KueueWorkload)


def test_a_namespace_that_is_kueues_keeps_it():
    (text,) = find_unmoved(sight(x=SERVED, y={}), [])
    assert text == "namespace y is Kueue's: `topogate migrate kueue --move q`"
    assert [*find_unmoved(sight(x=SERVED, y=SERVED), [workload("x", "Admitted")])] == []
    assert [*find_unmoved(sight(x=SERVED), [])] == [], "one that is gone keeps nothing"


def test_a_workload_in_a_namespace_without_queues_keeps_it_since_its_pods_would_end():
    seen = sight(x=SERVED, y=SERVED, z={})
    (text,) = find_unmoved(seen, [workload("z", "QuotaReserved", "Admitted")])
    assert text.startswith("namespace z is Kueue's, and has Workload w: wait until the jobs have ended")
    assert [*find_unmoved(seen, [workload("z", "Admitted", "Finished")])] == []


def test_jobs_of_a_namespace_without_queues_are_asked_for_too():
    seen = sight(x=SERVED, y=SERVED, z=SERVED, other=SERVED)
    assert list_concerned(seen, [workload("z", "Admitted"), workload("other", "Finished")]) == ["x", "y", "z"]
    assert list_concerned(sight(z=SERVED), [workload("z", "Admitted"), workload("gone", "Admitted")]) == ["z"]


def test_what_kueue_keeps_is_looked_at_again_after_the_question(monkeypatch):
    looks = []

    class Removal(KueueRemoval):
        async def require_moved(self, kinds):
            looks.append([*kinds])
            if len(looks) > 1:
                raise Failure("namespace z is Kueue's")

        async def list_removed(self, kinds):
            yield RemovedObject(DEPLOYMENTS, "kueue-controller-manager", "kueue-system")

        async def remove_all(self, removed):
            raise AssertionError("deleted past what came while the question was open")

    async def kinds_of(client):
        return [CUSTOM_RESOURCE_DEFINITIONS, Resource("kueue.x-k8s.io", "v1beta2", "clusterqueues", "ClusterQueue")]

    class Allowed:
        async def create(self, *_):
            return {"status": {"allowed": True}}

    monkeypatch.setattr("cli.migrate.moves.finish.list_resources", kinds_of)
    with pytest.raises(Failure, match="namespace z is Kueue's"):
        asyncio.run(Removal(Allowed(), MoveOptions("t", "kueue-system"), print, lambda _: True).finish())
    assert len(looks) == 2


def pod(gate, namespace, phase="Pending"):
    body = {"metadata": {"name": "p", "namespace": namespace}, "spec": {"schedulingGates": [{"name": gate}]}}
    return msgspec.convert({**body, "status": {"phase": phase}}, Pod)


@pytest.mark.parametrize(
    ("gate", "namespace", "stuck"),
    [
        ("kueue.x-k8s.io/admission", "served", True),
        ("kueue.x-k8s.io/admission", "free", True),
        ("kueue.x-k8s.io/topology", "free", True),
        ("kueue.x-k8s.io/topology", "served", False),
        ("example.com/gate", "free", False),
    ],
)
def test_a_pod_behind_a_gate_that_nobody_would_take_away_keeps_it(gate, namespace, stuck):
    labels = {"served": SERVED, "free": {}}
    assert bool([*find_stuck([pod(gate, namespace)], labels)]) == stuck
    assert [*find_stuck([pod(gate, namespace, "Failed")], labels)] == []


def webhook(*, namespace="kueue-system", groups=("kueue.x-k8s.io",), url=None):
    client = {"url": url} if url else {"service": {"namespace": namespace, "name": "kueue-webhook-service"}}
    return {"clientConfig": client, "rules": [{"apiGroups": [*groups]}]}


def test_a_webhook_configuration_is_kueues_by_its_group_and_by_where_all_of_it_leads():
    def is_kueues(*webhooks):
        return is_webhook_of_kueue({"webhooks": [*webhooks]}, "kueue-system")

    assert is_kueues(webhook(), webhook(groups=["batch"]))
    # Somebody else's, that is about Kueue's objects too, or in the same namespace.
    assert not is_kueues(webhook(namespace="policies"))
    assert not is_kueues(webhook(), webhook(namespace="policies"))
    assert not is_kueues(webhook(groups=["batch"]))
    assert not is_kueues(webhook(groups=["*"]))
    assert not is_kueues(webhook(url="https://example.com"))
    assert not is_kueues()


def test_objects_go_before_what_they_refer_to_and_the_kinds_that_tell_what_is_left_go_last():
    kinds = ["Topology", "ClusterQueue", "Workload", "Cohort", "LocalQueue"]
    assert sort_kinds(kinds, last=False) == ["Workload", "LocalQueue", "ClusterQueue", "Cohort", "Topology"]
    assert sort_kinds(kinds, last=True) == ["Cohort", "Topology", "Workload", "LocalQueue", "ClusterQueue"]


def test_what_is_deleted_is_shown_by_kind_and_name():
    crds = [RemovedObject(CUSTOM_RESOURCE_DEFINITIONS, f"k{at}.kueue.x-k8s.io") for at in range(8)]
    lines = [*describe_removed([*crds, RemovedObject(DEPLOYMENTS, "kueue-controller-manager", "kueue-system")])]
    assert lines[0].endswith("k4.kueue.x-k8s.io, k5.kueue.x-k8s.io and 2 more")
    assert lines[0].startswith("to be deleted: 8 CustomResourceDefinition: k0.kueue.x-k8s.io, ")
    assert lines[1] == "to be deleted: 1 Deployment: kueue-system/kueue-controller-manager"


def test_a_queue_on_hold_or_outside_of_its_cohort_is_on_its_way():
    wanted = {"cohortName": "all"}
    assert not is_under_way(wanted, {"cohortName": "all", "stopPolicy": "None"})
    assert is_under_way(wanted, {"cohortName": "all", "stopPolicy": "Hold"})
    assert is_under_way(wanted, {"stopPolicy": "None"})
    assert not is_under_way({"stopPolicy": "Hold"}, {"stopPolicy": "Hold"})


def ours(kind, status, reason, message="", *, owner="Deployment"):
    reference = {"apiVersion": "x/v1", "kind": owner, "name": "train", "uid": "u", "controller": True}
    said = [{"type": kind, "status": status, "reason": reason, "message": message}]
    meta = {"name": "w", "namespace": "team", "ownerReferences": [reference]}
    return msgspec.convert({"metadata": meta, "status": {"conditions": said}}, WorkloadObject)


def test_what_was_not_taken_over_keeps_kueue_whatever_its_owner_is():
    refused = ours("QuotaReserved", "False", "NotAdopted", "pods of Deployment are not taken over")
    (text,) = find_untaken({}, {"u": refused})
    assert text.startswith(
        "Deployment team/train runs by Kueue's admission, and was not taken over: pods of Deployment"
    )
    (text,) = find_untaken({"u": "Job team/train"}, {})
    assert text.startswith("Job team/train runs by Kueue's admission, and was not taken over: no controller has")
    assert [*find_untaken({"u": "Job team/train"}, {"u": ours("Admitted", "True", "Adopted", owner="Job")})] == []
