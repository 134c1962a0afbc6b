"""What a person reads of a job's placement, from plain data."""

import io

import pytest
from rich.console import Console

from cli.cluster.pod_zones import PodZone
from cli.cluster.room_report import Room
from cli.explain.rendering import render
from cli.explain.report import AskedPodSet, Domain, ExplainedPod, MachineTrouble, Report

BLOCK, RACK, HOST = "cloud-provider.com/topology-block", "cloud-provider.com/topology-rack", "kubernetes.io/hostname"


def pod(name, rank=None, *, phase="Running", gated=False):
    return ExplainedPod(name, phase, "" if gated else "node", rank, gated)


def report(**changes):
    plain = {
        "job": "default/train",
        "workload": "job-train-0",
        "state": "Placed",
        "reason": "Admitted",
        "message": "",
        "policy": "Required",
        "level": RACK,
        "count": 4,
        "per_pod": {"nvidia.com/gpu": "2"},
        "levels": (BLOCK, RACK, HOST),
        "flavor": "tas",
        "domains": (),
        "without_slot": (),
        "room": (),
    }
    return Report(**plain | changes)


def text(found):
    console = Console(file=io.StringIO(), width=140, color_system=None)
    console.print(render(found))
    return [line.rstrip() for line in console.file.getvalue().splitlines() if line.strip()]


def test_a_placed_job_as_a_tree_of_its_domains():
    domains = (
        Domain(("b1", "r1", "h1"), 2, (pod("a", 0), pod("b", 1))),
        Domain(("b1", "r1", "h2"), 1, (pod("c", 2, phase="Pending"),)),
        Domain(("b1", "r2", "h1"), 1, (pod("d", 3),)),
    )
    lines = text(report(domains=domains, message="4 pods in b1"))
    assert lines[0] == "Job default/train  4 pods (2 nvidia.com/gpu each), required cloud-provider.com/topology-rack"
    assert lines[1] == "Placed  4 pods in b1"
    assert [line.split() for line in lines[2:]] == [
        ["BLOCK", "RACK", "HOSTNAME", "SLOTS", "RUNNING", "RANKS"],
        ["b1", "r1", "h1", "2", "2", "0-1"],
        ["h2", "1", "0", "2"],
        ["r2", "h1", "1", "1", "3"],
    ]


def test_devices_of_claims_are_told_with_the_pods_that_have_them():
    had = ExplainedPod("a", "Running", "h1", 0, gated=False, devices=("gpu.example.com/gpu-0", "dra.net/eth1"))
    lines = text(report(domains=(Domain(("b1", "r1", "h1"), 2, (had, pod("b", 1))),)))
    assert lines[-1].split() == ["a", "h1", "gpu.example.com/gpu-0,", "dra.net/eth1"]


def test_one_that_is_moved_says_so():
    lines = text(report(message="4 pods in b1", moving="it is moved: it comes together"))
    assert lines[1:] == ["Placed  4 pods in b1", "it is moved: it comes together"]
    assert len(text(report(message="4 pods in b1"))) == 2


def test_pods_that_have_a_place_and_do_not_run_are_told_with_what_they_wait_for():
    """A claim that a driver refuses was "Placed", with RUNNING 0, and not a word more."""
    said = "pod a is bound to n1 and does not start: FailedPrepareDynamicResources: no such config"
    assert f"Not all of it runs  {said}" in text(report(hanging=said))
    assert "Not all of it runs" not in text(report())


def test_each_pod_set_is_told_with_its_own_requests():
    sets = (
        AskedPodSet("leader", 1, {"cpu": "2"}, "Unconstrained", ""),
        AskedPodSet("workers", 3, {"nvidia.com/gpu": "8"}, "Required", RACK),
    )
    lines = text(report(kind="JobSet", pod_sets=sets))
    assert lines[:3] == [
        "JobSet default/train  4 pods",
        "  leader  1 pod (2 cpu each), unconstrained",
        f"  workers  3 pods (8 nvidia.com/gpu each), required {RACK}",
    ]
    assert text(report(pod_sets=sets[1:]))[0] == text(report())[0], "of one there is nothing to tell apart"


def test_the_same_rack_name_in_another_block_is_printed_again():
    domains = (Domain(("b1", "r1", "h1"), 1, (pod("a"),)), Domain(("b2", "r1", "h1"), 1, (pod("b"),)))
    assert [line.split()[:3] for line in text(report(domains=domains))[-2:]] == [["b1", "r1", "h1"], ["b2", "r1", "h1"]]


def test_many_pods_without_ranks_are_counted():
    domain = Domain(("b1", "r1", "h1"), 4, tuple(pod(name) for name in "abcd"))
    assert text(report(domains=(domain,)))[-1].endswith("a, b and 2 more")


@pytest.mark.parametrize(
    ("ranks", "shown"), [([0], "0"), ([0, 1, 2], "0-2"), ([7, 1, 0, 3], "0-1, 3, 7"), ([2, 2], "2, 2")]
)
def test_ranks_as_intervals(ranks, shown):
    domain = Domain(("b1", "r1", "h1"), 4, tuple(pod(f"p{i}", rank) for i, rank in enumerate(ranks)))
    assert text(report(domains=(domain,)))[-1].split(maxsplit=5)[-1] == shown


def test_a_waiting_job_says_how_close_each_domain_comes():
    rooms = (
        Room("tas", ("b1", "r1"), 3, 4, "nvidia.com/gpu", {"nvidia.com/gpu": "2"}, {}),
        Room("tas", ("b1", "r2"), 0, 1, "NodeNotReady", {}, {"NodeNotReady": 3}),
    )
    waits = tuple(pod(f"p{i}", gated=True, phase="Pending") for i in range(4))
    found = report(state="Waiting", reason="DoesNotFit", message="no rack has room", room=rooms, without_slot=waits)
    lines = text(found)
    assert lines[1] == "Waiting  DoesNotFit: no rack has room"
    assert lines[2].split() == ["DOMAIN", "FITS", "(OF", "4)", "NODES", "LIMITED", "BY", "SHORT", "OF", "NODES", "OUT"]
    assert lines[3].split() == ["b1/r1", "3", "4", "nvidia.com/gpu", "2", "nvidia.com/gpu"]
    assert lines[4].split() == ["b1/r2", "0", "1", "NodeNotReady", "3", "NodeNotReady"]
    assert lines[5] == "4 pods without a slot, 4 of them gated"


def test_of_several_flavors_the_table_says_which():
    rooms = (
        Room("small", ("b1", "r1"), 3, 4, "nvidia.com/gpu", {"nvidia.com/gpu": "2"}, {}),
        Room("large", ("b1", "r1"), 0, 1, "NodeNotReady", {}, {"NodeNotReady": 3}),
    )
    lines = text(report(state="Waiting", room=rooms))
    assert lines[2].split()[:2] == ["FLAVOR", "DOMAIN"]
    assert [line.split()[:2] for line in lines[3:5]] == [["small", "b1/r1"], ["large", "b1/r1"]]


def test_a_job_without_a_request():
    found = report(state="NotManaged", policy="", level="", per_pod={}, message="carries no topology request")
    assert text(found)[0] == "Job default/train  4 pods (no requests each), no topology"


def test_the_zones_of_each_pod_and_who_says_so():
    zones = (
        PodZone(0, {"cpu": "8", "nvidia.com/gpu": "2"}, {"nvidia.com/gpu": ("GPU-0", "GPU-1")}),
        PodZone(2, {"memory": "4Gi"}, {}),
    )
    one = ExplainedPod("a", "Running", "n1", 0, False, zones, "observed")
    two = ExplainedPod("b", "Pending", "", 1, False, zones[1:], "predicted")
    lines = text(report(domains=(Domain(("b1", "r1", "h1"), 2, (one, two)),)))
    assert lines[-3].split() == ["POD", "NODE", "ZONES", "DEVICES", "SAID", "BY"]
    assert " ".join(lines[-2].split()) == "a n1 0: 8 cpu, 2 nvidia.com/gpu; 2: 4Gi memory GPU-0, GPU-1 observed"
    assert lines[-1].split() == ["b", "2:", "4Gi", "memory", "predicted"]


def test_the_zones_of_very_many_pods_are_cut_short():
    pods = tuple(
        ExplainedPod(f"p{i}", "Running", "n1", i, False, (PodZone(0, {"cpu": "1"}, {}),), "observed") for i in range(50)
    )
    lines = text(report(domains=(Domain(("b1", "r1", "h1"), 50, pods),)))
    assert lines[-1] == "and 10 more pods; -o json has them all"


def test_a_waiting_job_says_how_many_nodes_fail_by_numa_and_what_their_data_lacks():
    room = Room("tas", ("b1", "r1"), 2, 4, "NumaAlignment", {}, {"NumaAlignment": 1}, 3, "TopologyAffinityError")
    trouble = MachineTrouble(
        "n7", "NodeResourceTopology", ("zones[0].name: bad",), ("Topology Manager scope: differs",)
    )
    lines = text(report(state="Waiting", room=(room,), machine_troubles=(trouble,)))
    assert lines[2].split()[-1] == "NUMA"
    assert "3 nodes refuse more: TopologyAffinityError" in lines[3]
    assert "1 NumaAlignment" in lines[3]
    assert lines[-2:] == ["  n7: Topology Manager scope: differs", "  n7: zones[0].name: bad"]


def test_a_waiting_job_says_which_claims_lack_devices():
    why = 'h1: claim "gpu", request "one" (1 of DeviceClass "gpu"): 2 fit, 2 held by ns/a'
    limit = "devices of its claims"
    room = Room("tas", ("b1", "r1"), 2, 4, limit, {}, {"InsufficientDevices": 1}, devices=why)
    lines = text(report(state="Waiting", room=(room,)))
    assert lines[2].split()[-1] == "DEVICES"
    assert 'h1: claim "gpu", request "one"' in lines[3]


def test_at_host_level_the_ten_closest_of_many_domains_and_the_message_once():
    message = "4 pods do not fit one node: h0, the best of 35, takes 2"
    room = tuple(Room("tas", (f"h{at}",), 2 if at < 3 else 0, 1, "nvidia.com/gpu", {}, {}) for at in range(35))
    found = report(state="Waiting", message=message, room=room)
    lines = text(found)
    assert sum(line.startswith("h") for line in lines) == 10
    assert lines[-1] == "and 25 more domains, none of them closer; --all shows them"
    assert "".join(lines).count(message) == 1
    console = Console(file=io.StringIO(), width=140, color_system=None)
    console.print(render(found, 0))
    assert sum(line.startswith("h") for line in console.file.getvalue().splitlines()) == 35
