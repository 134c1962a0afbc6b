"""Paths, errors, indexes, patches, queries and shapes: the parts that need no API server."""

import asyncio
import gc

import msgspec
import pytest

from kube import errors, objects, resources
from kube.connection.transport import MAX_BACKOFF_SECONDS, backoff, query
from kube.informer import Index
from kube.lease import Lease
from kube.patches import escape, guard
from kube.pods.templates import template_of
from kube.watch import lines
from kube.workloads import LONGEST_TEMPLATE, WholeWorkload, WorkloadObject


@pytest.mark.parametrize(
    ("resource", "address", "path"),
    [
        (resources.PODS, (), "/api/v1/pods"),
        (resources.PODS, ("ns",), "/api/v1/namespaces/ns/pods"),
        (resources.PODS, ("ns", "web", "eviction"), "/api/v1/namespaces/ns/pods/web/eviction"),
        (resources.NODES, (None, "n1"), "/api/v1/nodes/n1"),
        (resources.NODES, ("ignored", "n1"), "/api/v1/nodes/n1"),
        (resources.WORKLOADS, ("ns", "a b/c"), "/apis/topogate.dev/v1alpha1/namespaces/ns/workloads/a%20b%2Fc"),
    ],
)
def test_paths(resource, address, path):
    assert resource.path(*address) == path


def test_paths_that_name_nothing_are_refused():
    with pytest.raises(ValueError, match="'web': a namespaced object needs its namespace"):
        resources.PODS.path(None, "web")
    with pytest.raises(ValueError, match="not empty"):
        resources.PODS.path("ns", "")


def test_the_resource_of_a_manifest():
    assert resources.resource_of({"apiVersion": "batch/v1", "kind": "Job"}) is resources.JOBS
    with pytest.raises(ValueError, match="'x': apiVersion 'v1' kind 'Nope'"):
        resources.resource_of({"apiVersion": "v1", "kind": "Nope", "metadata": {"name": "x"}})


@pytest.mark.parametrize(
    ("status", "reason", "kind"),
    [
        (400, "BadRequest", errors.BadRequest),
        (404, "NotFound", errors.NotFound),
        (409, "Conflict", errors.Conflict),
        (409, "AlreadyExists", errors.AlreadyExists),
        (410, "Expired", errors.Gone),
        (418, "", errors.ApiError),
        (429, "TooManyRequests", errors.TooManyRequests),
        (503, "", errors.ServerError),
    ],
)
def test_each_status_is_its_error(status, reason, kind):
    body = msgspec.json.encode({"kind": "Status", "reason": reason, "message": "why", "unknown": 1})
    error = errors.api_error(status, body, {"Retry-After": "7"}, "GET pods ns/web")
    assert type(error) is kind
    assert error.retry_after == 7
    assert str(error) == f"GET pods ns/web: {status} {reason}: why".replace("  ", " ").replace(" :", ":")


@pytest.mark.parametrize("body", [b"", b"<html>bad gateway</html>", b"\xff", b"[]"])
def test_an_error_without_a_status_object(body):
    assert errors.api_error(502, body).status == 502


@pytest.mark.parametrize("header", [None, "soon", "-1", "Wed, 21 Oct 2015 07:28:00 GMT"])
def test_retry_after_that_is_no_number(header):
    assert errors.api_error(429, b"", {"Retry-After": header} if header else {}).retry_after is None


def test_queries_leave_out_what_is_not_set():
    assert query({"a": None, "b": "", "c": False, "d": True, "limit": 0, "s": "a=b,c!=d"}) == (
        "?d=true&limit=0&s=a%3Db%2Cc%21%3Dd"
    )
    assert query(None) == query({}) == ""


def test_backoff_grows_to_its_limit():
    waits = [backoff(attempt) for attempt in range(60)]
    assert all(0 < wait <= MAX_BACKOFF_SECONDS for wait in waits)
    assert waits[0] <= 0.1
    assert waits[2] >= 0.2
    assert min(waits[10:]) >= MAX_BACKOFF_SECONDS / 2


def test_an_index_follows_its_objects():
    def labels(obj):
        if obj.metadata.labels is None:
            raise RuntimeError("broken indexer")
        return obj.metadata.labels.values()

    def make(name, **labels):
        return objects.Object(metadata=objects.ObjectMeta(name=name, labels=labels))

    index = Index("labels", labels)
    index.set("b", make("b", x="1", y="2"))
    index.set("a", make("a", x="1"))
    assert [obj.metadata.name for obj in index.get("1")] == ["a", "b"]
    index.set("b", make("b2", x="2"))
    assert [obj.metadata.name for obj in index.get("1")] == ["a"]
    assert [obj.metadata.name for obj in index.get("2")] == ["b2"]
    index.set("b", objects.Object())  # the indexer raises: nowhere to be found, and no harm done
    assert index.get("2") == []
    index.remove("a")
    index.remove("a")
    assert index._by == index._of == {}


def test_pointers_and_preconditions():
    assert escape("a/b~c") == "a~1b~0c"
    body = {"metadata": {"labels": {"a": "b"}}}
    assert guard(body, uid="u") == {"metadata": {"labels": {"a": "b"}, "uid": "u"}}
    assert guard({}, resource_version="7") == {"metadata": {"resourceVersion": "7"}}
    assert body == {"metadata": {"labels": {"a": "b"}}}


class Chunks:
    """What an aiohttp stream yields."""

    def __init__(self, *chunks: bytes) -> None:
        self.chunks = [*chunks, b""]

    async def readany(self) -> bytes:
        await asyncio.sleep(0)
        return self.chunks.pop(0)


@pytest.mark.parametrize(
    ("chunks", "batches"),
    [
        ((b"a\nb\n",), [[b"a", b"b"]]),
        ((b"a", b"b\nc", b"\n"), [[b"ab"], [b"c"]]),
        ((b"a\n", b"cut"), [[b"a"]]),
        ((b"a\nb", b"c", b"d\ne\nf"), [[b"a"], [b"bcd", b"e"]]),
        ((), []),
    ],
)
async def test_lines_whatever_the_chunks(chunks, batches):
    assert [batch async for batch in lines(Chunks(*chunks))] == batches


async def test_a_line_without_end_is_cut_off(monkeypatch):
    monkeypatch.setattr("kube.watch.MAX_LINE", 10)
    with pytest.raises(errors.BadAnswer):
        [batch async for batch in lines(Chunks(*[b"xxxx"] * 5))]


def test_shapes_take_what_they_do_not_know_and_miss_nothing():
    for shape in (objects.Node, objects.Pod, objects.Job, WholeWorkload, objects.ResourceFlavor, Lease):
        decoded = msgspec.json.decode(b'{"metadata":{"name":"a","managedFields":[{}]},"unknown":1}', type=shape)
        assert objects.key(decoded) == "a"
        assert not gc.is_tracked(decoded)


def test_templates_are_kept_only_of_admitted_workloads_of_pods_of_several_kinds():
    """Nobody else has the template of a kind of which no pod is there. Others are the bulk, and known elsewhere."""
    job = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": True}
    long = {"metadata": {"annotations": {"a": "x" * LONGEST_TEMPLATE}}}

    def kept(*templates, owner=None, status=None):
        pod_sets = [{"name": f"p{at}", "count": 1, "template": one} for at, one in enumerate(templates)]
        body = {
            "metadata": {"ownerReferences": [owner or {"kind": "Pod", "name": "p", "uid": "p"}]},
            "spec": {"podSets": pod_sets},
            "status": {"admission": {}} if status is None else status,
        }
        found = msgspec.json.decode(msgspec.json.encode(body), type=WorkloadObject).spec.pod_sets
        return [bytes(one.template) for one in found]

    assert kept({"spec": {}}, {}) == [b'{"spec":{}}', b"{}"]
    assert kept({"spec": {}}, long) == [b'{"spec":{}}', b""], "anybody may write one that is large"
    assert kept({"spec": {}}) == [b""]
    assert kept({}, {}, owner=job | {"kind": "RayCluster"}) == [b"{}", b"{}"]
    assert kept({"spec": {}}, {}, owner=job) == kept({"spec": {}}, {}, status={}) == [b"", b""]


def test_the_template_of_a_job_is_typed_and_whole():
    wire = {"spec": {"template": {"metadata": {"creationTimestamp": None}, "spec": {"containers": [{"image": "x"}]}}}}
    job = msgspec.json.decode(msgspec.json.encode(wire), type=objects.Job)
    assert template_of(job).spec.containers == (objects.Container(),)
    assert msgspec.json.decode(job.spec.template) == wire["spec"]["template"]


def test_the_controlling_owner():
    owners = (objects.OwnerReference(uid="a"), objects.OwnerReference(uid="b", controller=True))
    assert objects.controller_of(objects.ObjectMeta(owner_references=owners)).uid == "b"
    assert objects.controller_of(objects.ObjectMeta()) is None
