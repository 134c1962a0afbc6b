"""A film of a board: whoever puts its moments together has what the board was at each of them."""

import json

import msgspec
import pytest

from cli.web.simulated import Recording
from engine.model import Flavor, Node, PodSet, Policy, TopologyRequest
from queueing.model import ClusterQueue, FlavorQuotas, LocalQueue, Quota, ResourceGroup
from simulator.model import NAMESPACE, Placing, SimulatedCluster, SimulatedJob
from simulator.model import SchedulingPolicy as SimulationPolicy
from simulator.run import Simulation
from web import film as filmed
from web import picture
from web.board import Board
from web.facts import HolderFacts, Host, HostState
from web.film import Film
from web.sight import EVERYTHING

GPU, RACK, HOST = "nvidia.com/gpu", "example.com/rack", "kubernetes.io/hostname"


def cluster(nodes=4):
    names = [f"n{number}" for number in range(nodes)]
    made = tuple(
        Node(name=name, labels={RACK: f"r{at // 2}", HOST: name}, allocatable={GPU: 8, "pods": 100})
        for at, name in enumerate(names)
    )
    group = ResourceGroup(
        resources=(GPU,), flavors=(FlavorQuotas(flavor="h100", resources={GPU: Quota(nominal=8 * nodes)}),)
    )
    return SimulatedCluster(
        flavors=(Flavor(name="h100", levels=(RACK, HOST)),),
        nodes=made,
        queues=(ClusterQueue(name="all", groups=(group,)),),
        local=(LocalQueue(namespace=NAMESPACE, name="mine", cluster_queue="all"),),
    )


def job(name, arrival, pods, duration=100.0):
    request = TopologyRequest(policy=Policy.REQUIRED, level=RACK)
    pod_set = PodSet(name="main", count=pods, requests={GPU: 8}, topology=request)
    return SimulatedJob(name=name, arrival=arrival, duration=duration, pod_sets=(pod_set,), queue="mine")


def recorded(jobs, first=None):
    recording = Recording(first, "topology")
    simulation = Simulation(cluster(), jobs, SimulationPolicy(Placing.TOPOLOGY))
    boards = []

    def watch(step):
        before = len(recording.film.times) if recording.film else 0
        recording(step)
        if len(recording.film.times) > before:
            whole = picture.whole_picture(
                recording.film.board, EVERYTHING, version=0, epoch="", now=step.now, cluster=""
            )
            boards.append(json.loads(whole))

    simulation.run(None, watch)
    return recording, boards


def test_moments_put_together_are_what_the_board_was_at_each():
    jobs = [job("a", 0.0, 2), job("b", 10.0, 2, 300.0), job("c", 20.0, 2), job("d", 400.0, 1)]
    recording, boards = recorded(jobs)
    told = json.loads(msgspec.json.encode(recording.film.moments_from(recording.first)))
    now = json.loads(recording.film.whole)
    workloads = dict(recording.film.workloads)
    hosts, holders = now["hosts"], {row[0]: row for row in now["holders"]}
    for moment, board in zip(told["moments"][1:], boards[1:], strict=True):
        for index, *rest in moment["changes"]["hosts"]:
            hosts[index] = [*hosts[index][:2], *rest]
        for number in moment["changes"]["gone"]:
            del holders[number]
        holders |= {row[0]: row for row in moment["changes"]["holders"]}
        workloads |= moment["workloads"]
        assert hosts == board["hosts"]
        assert sorted(holders.values()) == sorted(board["holders"])
    assert workloads["default/c"]["asked"] == [["main", 2, 8, "Required", RACK]]
    states = {row[13] for board in boards for row in board["holders"]}
    assert states == {"waiting", "running"}
    assert boards[-1]["holders"] == [], "all have ended"


def test_a_recording_begins_half_way_or_when_it_was_asked_for_and_knows_the_quotas():
    jobs = [job("a", 0.0, 1), job("b", 100.0, 1), job("c", 400.0, 1)]
    recording, _ = recorded(jobs)
    assert recording.first == 200.0
    assert recording.film.moments_from(250.0)["first"] == recording.film.times.index(
        max(time for time in recording.film.times if time <= 250.0)
    )
    (queue,) = recording.queues["queues"]
    assert (queue["name"], queue["local_queues"]) == ("all", [f"{NAMESPACE}/mine"])
    assert queue["quotas"][0] | {"nominal": "32"} == queue["quotas"][0]
    assert recorded(jobs, 30.0)[0].first == 30.0


@pytest.mark.parametrize(("hosts", "most"), [(1, filmed.MOST_MOMENTS), (100_000, 3)])
def test_a_film_ends_before_it_is_too_long(monkeypatch, hosts, most):
    monkeypatch.setattr(filmed, "MOST_HOST_ROWS", 300_000)
    board = Board(GPU)
    board.hosts = dict.fromkeys(map(str, range(hosts)), Host("n", 0, HostState.READY))
    found = Film(board, "c")
    while not found.full:
        board.set_holder(HolderFacts("team", "Job", "train", workload="train", count=len(found.times)))
        found.take_moment(float(len(found.times)))
    assert len(found.times) == most
