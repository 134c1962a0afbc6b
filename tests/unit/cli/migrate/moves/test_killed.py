"""A move, the way back and the end of Kueue, killed after each of their writes and run again.

Both controllers are played (`support.move_world`), and Topogate's is killed after each of its writes too. That the real
one loses nothing then is what simulated histories try (`support.history.kueue`).
"""

import asyncio
import functools

import pytest
from support.move_world import KINDS, make_world

from cli.migrate.moves.handover import KUEUE_FINALIZER
from cli.output import Failure
from kube.resources import CLUSTER_QUEUES, CONFIG_MAPS, JOBS, NAMESPACES, PODS, WORKLOADS

QUEUE = KINDS["ClusterQueue"]
ALL = ("a-runs", "b-runs", "a-first", "b-first", "a-waits", "b-waits", "a-waits-more")
# What the way back leaves here, as docs/move-from-kueue.md says.
STAYS = (
    *(f"topogate.dev/{kind}/" for kind in ("resourceflavors", "workloadpriorityclasses", "cohorts")),
    "/configmaps/topogate/topogate-migration",
)


@functools.cache
def served_by_kueue():
    return make_world()


@functools.cache
def served_here():
    """All has moved, a job that was taken over has ended, and Topogate has started the next one."""
    world = served_by_kueue().copy()
    world.run("--move")
    world.end("a-runs")
    assert world.started == ["a-runs", "b-runs", "a-first"]
    return world


@functools.cache
def with_a_pod_of_kueues():
    """As above, and a plain pod of Kueue's has its finalizer again, which is the last thing that is taken."""
    world = served_here().copy()
    world.store.patch(PODS, "plain", "x", {"metadata": {"finalizers": [KUEUE_FINALIZER]}})
    return world


@functools.cache
def undisturbed(start, way):
    """The cluster after a command, and how many writes that took."""
    world = start().copy()
    client = world.run(way)
    return world, client.writes


def differences(one, other, left_out=lambda _: False):
    """What is not the same, by the key of the object."""
    left, right = one.digest(), other.digest()
    return {
        key: (left.get(key), right.get(key))
        for key in left.keys() | right.keys()
        if left.get(key) != right.get(key) and not left_out(key)
    }


def started_in_the_end(world):
    """In which order jobs start as those before them end."""
    later = world.copy()
    while left := [name for name in later.started if f"{later.namespace_of(name)}/{name}" not in later.ending]:
        later.end(left[0])
    assert later.wrong == []
    return later.started


@pytest.mark.parametrize(
    ("start", "way", "most"),
    [(served_by_kueue, "--move", 25), (served_here, "--back", 45), (with_a_pod_of_kueues, "--finish", 40)],
)
def test_a_command_that_is_killed_after_any_write_ends_as_undisturbed_when_it_is_run_again(start, way, most):
    goal, writes = undisturbed(start, way)
    assert most - 10 < writes <= most
    order = started_in_the_end(goal)
    assert sorted(order) == sorted(ALL)
    # After the last write nothing is left to do, and the way back says that nothing has moved.
    for at in range(1, writes):
        world = start().copy()
        assert world.run(way, dies_after=at) is None
        world.run(way)
        assert differences(world, goal) == {}, f"killed after write {at}"
        assert started_in_the_end(world) == order, f"killed after write {at}"


def undone(begin, way, back):
    """For each write of a command, the world in which it was killed after that and another one undid it, and before."""
    start, (_, writes) = begin(), undisturbed(begin, way)
    order = started_in_the_end(start)
    for at in range(1, writes + 1):
        world = start.copy()
        world.run(way, dies_after=at)
        world.run(back)
        yield at, world, start
        assert started_in_the_end(world) == order, f"killed after write {at}"


def test_a_move_that_is_killed_after_any_write_can_be_taken_back():
    for at, world, start in undone(served_by_kueue, "--move", "--back"):
        maps = [one["metadata"]["name"] for one in world.store.within(CONFIG_MAPS) if not one.get("data")]
        assert maps == ["topogate-migration"]
        # The finalizer is Kueue's protection of a pod that runs; nobody puts it back.
        wrong = differences(world, start, lambda key: key.startswith(STAYS) or key == "/pods/x/plain")
        assert wrong == {}, f"killed after write {at}"


def test_a_way_back_that_is_killed_after_any_write_can_be_undone_by_a_move():
    for at, world, start in undone(served_here, "--back", "--move"):
        # Kueue has Workloads of its own by then: of what runs as Topogate started it, and of what waits as it was.
        wrong = differences(world, start, lambda key: "/workloads/" in key or "/localqueues/" in key)
        wrong = {key: both for key, both in wrong.items() if not key.startswith("topogate.dev/clusterqueues/")}
        assert wrong == {}, f"killed after write {at}"
        assert [spec_of(world, name) for name in "ab"] == [spec_of(start, name) for name in "ab"]
        assert admitted_here(world) == admitted_here(start)


def spec_of(world, name, kind=CLUSTER_QUEUES):
    return world.store.find(kind, name)["spec"]


def admitted_here(world):
    every = world.store.within(WORKLOADS)
    return [one["metadata"]["name"] for one in every if (one.get("status") or {}).get("admission")]


def test_a_controller_that_is_killed_after_any_write_during_a_move_takes_over_the_same():
    start, (goal, _) = served_by_kueue(), undisturbed(served_by_kueue, "--move")
    order, writes = started_in_the_end(goal), goal.topogate_writes
    assert writes == 14, "a Workload of each of seven jobs, two admissions, and five templates of those that wait"
    for at in range(1, writes + 1):
        world = start.copy()
        world.topogate_dies_after = at
        world.run("--move")
        assert differences(world, goal) == {}, f"killed after write {at}"
        assert started_in_the_end(world) == order, f"killed after write {at}"


def test_a_move_that_gives_up_is_killed_while_it_undoes_its_hold():
    start = served_by_kueue().copy()
    # A pod of Kueue's that has no node yet: Kueue's queues go on after all patience.
    body = {"metadata": {"name": "late", "labels": {"kueue.x-k8s.io/podset": "main"}}, "spec": {}, "status": {}}
    start.store.create(PODS, body, "x")
    whole = start.copy()
    with pytest.raises(Failure, match="its queues go on:\npod x/late is not on a node yet"):
        whole.run("--move")
    assert differences(whole, start, lambda key: key.endswith("/topogate-migration")) == {}
    for at in range(1, 6):
        world = start.copy()
        assert world.run("--move", dies_after=at) is None
        with pytest.raises(Failure, match="its queues go on"):
            world.run("--move")
        assert differences(world, whole) == {}, f"killed after write {at}"


def test_a_queue_that_is_changed_after_a_move_that_ended_early_moves_as_it_is_by_then():
    world = served_by_kueue().copy()
    assert world.run("--move", dies_after=1) is None
    spec = spec_of(world, "a", QUEUE)
    spec = {**spec, "resourceGroups": [{**spec["resourceGroups"][0], "flavors": flavors_with("7")}]}
    world.store.patch(QUEUE, "a", "", {"spec": spec})
    world.run("--move")
    assert spec_of(world, "a")["resourceGroups"][0]["flavors"] == flavors_with("7")
    world.run("--back")
    assert spec_of(world, "a", QUEUE) == spec


def flavors_with(quota):
    return [{"name": "f", "resources": [{"name": "cpu", "nominalQuota": quota, "lendingLimit": "0"}]}]


def test_the_played_cluster_sees_what_must_not_be():
    world = served_by_kueue().copy()
    world.store.create(CLUSTER_QUEUES, {"metadata": {"name": "a"}, "spec": spec_of(world, "a", QUEUE)})
    world.store.delete(PODS, "a-runs-0", "x")
    assert world.wrong == ["the quota of a is lent twice", "a goes on in both", "pod x/a-runs-0 ran and ended"]
    # Nothing was handed back: Kueue has no admitted Workload of what Topogate started.
    world = served_here().copy()
    world.store.patch(NAMESPACES, "x", "", {"metadata": {"labels": {"topogate.dev/served": None}}})
    world.play(lambda _: asyncio.sleep(20))
    world.store.patch(JOBS, "a-first", "x", {"metadata": {"labels": {"changed": "true"}}})
    world.play(lambda _: asyncio.sleep(1))
    assert world.wrong[0] == "Kueue suspended x/a-first, which runs"
