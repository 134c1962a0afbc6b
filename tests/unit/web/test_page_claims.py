"""Devices of claims on the inside of a host: who has which, of which zone, which are free; names by what is seen."""

import msgspec
import pytest
from support.dra import DRIVER, counters, device, resource_slice
from support.snapshots import GPU, node
from support.web_cluster import items

from cli.cluster.dump import FoundObject
from cli.web.snapshot import ClusterSnapshot
from crds.constants import Keys
from crds.graph import zone_number
from crds.settings import Settings
from engine.claims.model import PCIE_ROOT
from kube.pods.devices import ResourceClaim, ResourceSlice
from ungater import kinds
from web import inside
from web.live import BoardFeed
from web.sight import EVERYTHING, Sight

RESOURCE = "resource.k8s.io/v1"


def gpus(count, **fields):
    """The slice of a host's GPUs, half of them on each of two zones."""
    devices = [device(f"gpu-{at}", numaNode=at // (count // 2)) for at in range(count)]
    return published(resource_slice(*devices, name="n-gpus", pool="n", **fields))


def published(one):
    return {"apiVersion": RESOURCE, "kind": "ResourceSlice", **one}


def claim(name, *devices, pods=(), namespace="team", **fields):
    results = [{"request": "r", "driver": DRIVER, "pool": "n", "device": one, **fields} for one in devices]
    reserved = [{"resource": "pods", "name": pod, "uid": f"uid-{pod}"} for pod in pods]
    return {
        "apiVersion": RESOURCE,
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {},
        "status": {"allocation": {"devices": {"results": results}}, "reservedFor": reserved},
    }


def pod(name, *, namespace="team", on="n", limits=None):
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "nodeName": on,
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpu"}],
            "containers": [{"name": "main", "resources": {"limits": limits or {"cpu": "4"}}}],
        },
        "status": {"phase": "Running"},
    }


def shown(*bodies, sight=EVERYTHING, name="n"):
    found = [node("n", "r1"), node("other", "r1"), *bodies]
    snapshot = ClusterSnapshot(
        (FoundObject("made", b"", 0, None, one, one["kind"]) for one in found), Settings(), "made"
    )
    return inside.machine(snapshot.board, sight, name, *snapshot.inside_of_host(name))


def told(made):
    """Of each device its zones, its state and who has it."""
    names = [one["name"] or "others" for one in made["pods"]]
    return {
        one["name"]: (list(one["zones"]), str(one["state"]), [names[at] for at in one["pods"]] or one["claims"])
        for one in made["claimed"]
    }


def test_a_pod_has_the_devices_of_its_claims_and_the_others_are_free():
    made = shown(gpus(4), claim("a-gpu", "gpu-1", "gpu-2", pods=["a"]), pod("a"))
    assert told(made) == {
        "gpu-0": ([0], "free", []),
        "gpu-1": ([0], "held", ["team/a"]),
        "gpu-2": ([1], "held", ["team/a"]),
        "gpu-3": ([1], "free", []),
    }
    assert {(one["driver"], one["pool"]) for one in made["claimed"]} == {(DRIVER, "n")}
    assert told(shown(gpus(4), name="other")) == {}


def test_what_others_hold_counts_without_a_name():
    bodies = gpus(4), claim("b-gpu", "gpu-0", pods=["b"], namespace="secret"), pod("b", namespace="secret")
    away = claim("mine", "gpu-3", namespace="secret")
    made = shown(*bodies, away, sight=Sight(hosts=True, namespaces=frozenset({"team"})))
    assert told(made)["gpu-0"] == ([0], "held", ["others"])
    last = made["claimed"][-1]
    assert (last["state"], last["claims"], last["others"]) == ("held", [], True)
    assert "secret" not in str(made)
    assert "mine" not in str(made)


def test_a_claim_of_nobody_here_is_named():
    made = shown(gpus(4), claim("kept", "gpu-0"))
    assert told(made)["gpu-0"] == ([0], "held", ["team/kept"])


def test_several_pods_have_the_devices_of_a_claim_that_they_share():
    made = shown(gpus(4), claim("both", "gpu-0", pods=["a", "b"]), pod("a"), pod("b"))
    assert told(made)["gpu-0"] == ([0], "held", ["team/a", "team/b"])


def test_who_only_looks_at_a_device_holds_none():
    made = shown(gpus(4), claim("monitor", "gpu-0", pods=["a"], adminAccess=True), pod("a"))
    assert told(made)["gpu-0"] == ([0], "free", [])


def test_a_partition_whose_counters_others_took_is_not_free():
    parts = [device(f"part-{at}", uses={"memory": amount}) for at, amount in enumerate(("10Gi", "40Gi", "20Gi"))]
    bodies = counters(memory="40Gi"), resource_slice(*parts, name="parts", slices=2)
    held = claim("c", "part-0", pods=["a"])
    held["status"]["allocation"]["devices"]["results"][0]["pool"] = "p"
    made = shown(*map(published, bodies), held, pod("a"))
    assert {name: state for name, (_, state, _) in told(made).items()} == {
        "part-0": "held",
        "part-1": "blocked",
        "part-2": "free",
    }


def test_a_device_of_which_shares_are_taken_is_shared():
    one = device("nic-0", capacity={"bandwidth": "10"}, allowMultipleAllocations=True)
    taken = claim("c", "nic-0", pods=["a"], shareID="5f0c", consumedCapacity={"bandwidth": "4"})
    assert told(shown(published(resource_slice(one, pool="n")), taken, pod("a")))["nic-0"][1] == "shared"


def test_a_device_that_a_rule_taints_says_so():
    taint = {"key": "broken", "value": "yes", "effect": "NoSchedule"}
    rule = {
        "apiVersion": RESOURCE,
        "kind": "DeviceTaintRule",
        "metadata": {"name": "broken"},
        "spec": {"deviceSelector": {"driver": DRIVER, "pool": "n", "device": "gpu-0"}, "taint": taint},
    }
    made = shown(gpus(4), rule)
    assert [one["taint"] for one in made["claimed"]] == ["broken=yes:NoSchedule", "", "", ""]


def test_what_a_pod_has_that_is_not_published_any_more_is_told():
    made = shown(claim("a-gpu", "gpu-1", pods=["a"]), pod("a"))
    assert told(made) == {"gpu-1": ([], "gone", ["team/a"])}


def test_a_pool_that_is_not_whole_says_so():
    made = shown(gpus(4, slices=2))
    assert made["claimed"] == []
    assert made["problems"] == [f"pool {DRIVER}/n: not all its ResourceSlices are there"]


@pytest.mark.parametrize("spec", [{"driver": DRIVER, "nodeName": "n"}, {"nodeName": "n", "devices": 7}, {}])
def test_a_slice_that_cannot_be_read_costs_no_other(spec):
    wrong = published({"metadata": {"name": "wrong"}, "spec": spec})
    made = shown(wrong, gpus(4))
    assert [one["name"] for one in made["claimed"]] == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]
    assert [one for one in made["problems"] if "wrong" in one] or "nodeName" not in spec


def test_of_very_many_devices_those_are_shown_that_somebody_has():
    many = [device(f"channel-{at:04d}") for at in range(600)]
    made = shown(published(resource_slice(*many, pool="n")), claim("c", "channel-0599", pods=["a"]), pod("a"))
    assert len(made["claimed"]) == inside.MOST_DEVICES
    assert made["claimed"][-1]["name"] == "channel-0599"
    assert made["more"] == 600 - inside.MOST_DEVICES


def test_hosts_that_slices_reach_by_their_labels_have_the_devices():
    selector = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "example.com/rack", "operator": "Exists"}]}]}
    one = published(resource_slice(device("nic-0"), pool="n", nodeSelector=selector))
    made = shown(one, claim("c", "nic-0", pods=["a"]), pod("a", on="other"), name="other")
    assert told(made)["nic-0"] == ([], "held", ["team/a"])
    assert told(shown(one, claim("c", "nic-0", pods=["a"]), pod("a", on="other")))["nic-0"][2] == ["team/c"]


def test_a_pod_with_claims_and_no_plain_amount_is_on_its_host():
    made = shown(gpus(4), claim("a-gpu", "gpu-0", pods=["a"]), pod("a"))
    assert [(one["name"], one["amount"]) for one in made["pods"]] == [("team/a", 0)]
    assert made["resource"] == GPU


def test_a_claim_that_comes_changes_or_goes_changes_the_host_alone():
    found = [node("n", "r1"), node("other", "r1"), gpus(4), pod("a")]
    board = ClusterSnapshot(
        (FoundObject("made", b"", 0, None, one, one["kind"]) for one in found), Settings(), "made"
    ).board
    feed = BoardFeed(board, Keys(), lambda _: None)
    states = []
    for body in (claim("c", "gpu-0", pods=["a"]), claim("c", "gpu-3", pods=["a"]), claim("c", 7), None):
        board.take_changes()
        feed.show_object(
            kinds.RESOURCE_CLAIMS, "team/c", msgspec.convert(body, ResourceClaim) if body is not None else None
        )
        assert board.take_changes()[0] == ({"n"} if len(states) < 3 else set())
        states.append([str(one.state) for one in board.devices_on("n", {})[0]])
    assert states == [["held", *["free"] * 3], [*["free"] * 3, "held"], ["free"] * 4, ["free"] * 4]


def test_a_slice_that_goes_takes_its_devices_along():
    found = [node("n", "r1"), gpus(4)]
    board = ClusterSnapshot(
        (FoundObject("made", b"", 0, None, one, one["kind"]) for one in found), Settings(), "made"
    ).board
    board.take_changes()
    feed = BoardFeed(board, Keys(), lambda _: None)
    feed.show_object(kinds.RESOURCE_SLICES, "n-gpus", None)
    assert board.take_changes()[0] == {"n"}
    assert board.devices_on("n", {}) == ([], [])
    feed.show_object(kinds.RESOURCE_SLICES, "n-gpus", msgspec.convert(gpus(2), ResourceSlice))
    assert len(board.devices_on("n", {})[0]) == 2


def test_a_slice_that_names_no_host_any_more_and_cannot_be_read_takes_its_devices_along():
    found = [node("n", "r1"), gpus(4)]
    board = ClusterSnapshot(
        (FoundObject("made", b"", 0, None, one, one["kind"]) for one in found), Settings(), "made"
    ).board
    board.take_changes()
    wrong = gpus(4, nodeName=None, allNodes=True)
    wrong["spec"]["devices"][0]["name"] = 7
    BoardFeed(board, Keys(), lambda _: None).show_object(
        kinds.RESOURCE_SLICES, "n-gpus", msgspec.convert(wrong, ResourceSlice)
    )
    assert board.take_changes()[0] == {"n"}
    assert board.devices_on("n", {}) == ([], [])


def test_where_a_cluster_is_told_by_its_cpus_these_are_no_devices_of_a_zone():
    machine = items(1, 1, 1, machines=1)
    for one in machine:
        if one["kind"] == "Node":
            del one["status"]["allocatable"][GPU]
    snapshot = ClusterSnapshot(
        (FoundObject("made", b"", 0, None, one, one["kind"]) for one in machine), Settings(), "made"
    )
    name = next(one["metadata"]["name"] for one in machine if one["kind"] == "FlexTopo")
    made = inside.machine(snapshot.board, EVERYTHING, name, *snapshot.inside_of_host(name))
    assert made["resource"] == "cpu"
    assert len(made["zones"]) == 4
    assert made["devices"] == []


def test_a_device_that_tells_its_pcie_root_alone_is_shown_in_the_zone_of_that():
    machine = items(1, 1, 1, machines=1)
    (flex,) = (one for one in machine if one["kind"] == "FlexTopo")
    card = next(one for one in flex["spec"]["nodes"] if one["type"] == "NIC")
    card["attributes"]["pcieRoot"] = "pci0000:16"
    name, near = flex["metadata"]["name"], {one["source"]: one["target"] for one in flex["spec"]["edges"]}[card["id"]]
    one = resource_slice(device("nic", **{PCIE_ROOT: "pci0000:16"}), name="s", pool=name, nodeName=name)
    assert [list(one["zones"]) for one in shown(*machine, published(one), name=name)["claimed"]] == [
        [zone_number(near)]
    ]
