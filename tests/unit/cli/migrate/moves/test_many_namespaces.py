"""How much a move asks the API server where it has a thousand namespaces."""

import asyncio

import pytest
from support.move_store import MoveStore, StoreClient
from support.move_world import KINDS, make_job, make_world

from cli.migrate.moves import sight as sights
from cli.migrate.moves.backup import Backups
from cli.migrate.moves.sight import MoveSight, list_in, look_at_jobs, make_view
from cli.migrate.source_objects import KueueObjectsRead
from kube.errors import Forbidden
from kube.resources import CUSTOM_RESOURCE_DEFINITIONS, JOB_SETS, LOCAL_QUEUES, NAMESPACES, PODS

THOUSAND = [f"n{at}" for at in range(1000)]


def sight(labelled):
    labels = {name: {} for name in labelled}
    return MoveSight(KINDS, KueueObjectsRead([], []), {}, make_view([], {}), Backups("t"), labels, {})


def store_of(namespaces):
    store = MoveStore()
    names = {"kind": "Workload", "plural": "workloads"}
    body = {"metadata": {"name": "workloads"}, "spec": {"names": names, "scope": "Namespaced"}}
    store.create(CUSTOM_RESOURCE_DEFINITIONS, body)
    for name in namespaces:
        make_job(store, name, "q", "train", "low")
    return store


@pytest.mark.parametrize(
    ("asked", "labelled", "requests"),
    [
        (THOUSAND, THOUSAND, 4),
        (THOUSAND[:250], THOUSAND, 4),
        # A few, or a small part of many: all the others would be read for nothing.
        (THOUSAND[:249], THOUSAND, 996),
        (THOUSAND[:10], THOUSAND[:10], 40),
        ([], THOUSAND, 0),
    ],
)
def test_one_look_at_many_namespaces_is_one_list_of_each_kind(asked, labelled, requests):
    client = StoreClient(store_of(labelled))
    seen = asyncio.run(look_at_jobs(client, sight(labelled), asked))
    assert sorted(one["metadata"]["namespace"] for one in seen.jobs.values()) == sorted(asked)
    assert client.requests.total() == requests


def test_whoever_may_not_read_the_whole_cluster_reads_each_namespace():
    class Narrow(StoreClient):
        async def list(self, resource, namespace=None, **more):
            if namespace is None:
                raise Forbidden(403, "Forbidden", "not in all of it")
            return await super().list(resource, namespace, **more)

    names = THOUSAND[:20]
    client = Narrow(store_of(names))
    seen = asyncio.run(look_at_jobs(client, sight(names), names))
    assert len(seen.jobs) == 20
    assert client.requests.total() == 80


def test_a_kind_that_is_not_served_is_asked_for_once():
    class Without(StoreClient):
        async def list(self, resource, namespace=None, **more):
            self.requests[resource.plural] += 1
            raise sights.NotFound(404, "NotFound", resource.plural)

    client = Without(MoveStore())
    assert asyncio.run(list_in(client, sight(THOUSAND), JOB_SETS, THOUSAND[:100], dict)) == []
    assert client.requests.total() == 1


def spread_world(count):
    """As `make_world`, with LocalQueues of b in more namespaces."""
    world = make_world()
    for at in range(count):
        world.store.create(NAMESPACES, {"metadata": {"name": f"z{at}"}})
        local = {"metadata": {"name": "b"}, "spec": {"clusterQueue": "b"}}
        world.store.create(KINDS["LocalQueue"], local, f"z{at}")
    return world


def test_a_whole_move_and_back_asks_no_more_for_each_namespace_than_it_writes_there(monkeypatch):
    world = spread_world(60)
    one_by_one = world.copy()
    lists = [lists_of(world.run(way)) for way in ("--move", "--back")]
    monkeypatch.setattr(sights, "FEW", 1000)
    before = [lists_of(one_by_one.run(way)) for way in ("--move", "--back")]
    print(f"lists of --move and --back: {before} with one of each namespace, {lists} with one of the cluster")
    assert world.digest() == one_by_one.digest()
    assert max(lists) < 160
    assert min(before) > 1500
    assert world.store.within(PODS)
    assert world.store.within(LOCAL_QUEUES) == []


def lists_of(client):
    return sum(count for (verb, _), count in client.requests.items() if verb == "list")
