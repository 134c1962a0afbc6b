"""What whoever moves queues may not do is said before anything is changed."""

import asyncio
import functools

import pytest
from support.move_store import StoreClient
from support.move_world import HOME, KINDS, OPTIONS, make_world

from cli.migrate.moves.finish import KueueRemoval
from cli.migrate.moves.handover import Handover
from cli.migrate.moves.rights import (
    NeededRight,
    needed_to_finish,
    needed_to_move,
    needed_to_take_back,
    require_rights,
)
from cli.migrate.moves.take_back import TakeBack
from cli.output import Failure
from kube.resources import NAMESPACES, PODS, WORKLOADS

NEEDED = {"--move": needed_to_move, "--back": needed_to_take_back, "--finish": needed_to_finish}


@functools.cache
def world_before(way):
    world = make_world()
    if way != "--move":
        world.run("--move")
    return world


def start(way, client):
    """The command, as far as it comes before it asks or waits."""
    if way == "--move":
        return Handover(client, OPTIONS, print).move_queues([])
    if way == "--back":
        return TakeBack(client, OPTIONS, print).take_back([])
    return KueueRemoval(client, OPTIONS, print, lambda _: True).finish()


@pytest.mark.parametrize("way", NEEDED)
def test_all_that_is_missing_is_said_at_once_and_nothing_is_changed(way):
    world = world_before(way).copy()
    client = StoreClient(world.store)
    client.forbidden = {("patch", "pods"), ("delete", "workloads"), ("patch", "namespaces")}
    before = world.digest()
    with pytest.raises(Failure) as raised:
        asyncio.run(start(way, client))
    first, *lines = str(raised.value).splitlines()
    assert first == (
        f"nothing was {'deleted' if way == '--finish' else 'moved back' if way == '--back' else 'moved'}: you lack "
        "rights that this takes. Ask a cluster administrator to run it, or for a role with them:"
    )
    where = "" if way == "--finish" else " in namespace x, y"
    assert (f"you may not patch pods{where}" in lines) == (way != "--back")
    assert ("you may not patch namespaces" in lines) == (way != "--finish")
    assert (f"you may not delete workloads.kueue.x-k8s.io{where}" in lines) == (way != "--move")
    assert world.digest() == before


@pytest.mark.parametrize("way", NEEDED)
def test_every_write_of_a_command_is_among_the_rights_that_are_asked_for(way):
    world = world_before(way).copy()
    client = world.run(way)
    asked = {
        (verb, "/".join(filter(None, (one.resource.plural, one.subresource))))
        for one in NEEDED[way](KINDS, OPTIONS)
        for verb in one.verbs
    }
    made = {one for one in client.requests if one[0] in {"create", "patch", "delete"}}
    assert made - asked == {("create", "selfsubjectaccessreviews")}


def test_a_right_in_each_of_the_namespaces_is_as_good():
    class Bound(StoreClient):
        async def create(self, resource, obj, namespace=None, **more):
            asked = obj["spec"]["resourceAttributes"]
            return {"status": {"allowed": asked["namespace"] == "x"}}

    def missing(one, *namespaces):
        try:
            asyncio.run(require_rights(Bound(None), [one], namespaces, nothing="nothing was moved"))
        except Failure as error:
            return str(error).partition(":\n")[2]
        return None

    assert missing(NeededRight(PODS, ("list", "patch")), "x") is None
    assert missing(NeededRight(PODS, ("list", "patch")), "x", "y") == "you may not list, patch pods in namespace y"
    assert missing(NeededRight(PODS, ("list",))) == "you may not list pods"
    assert missing(NeededRight(NAMESPACES, ("patch",)), "x") == "you may not patch namespaces"
    one = NeededRight(WORKLOADS, ("patch",), HOME, "status")
    assert missing(one, "x") == "you may not patch workloads.topogate.dev/status in namespace topogate"
