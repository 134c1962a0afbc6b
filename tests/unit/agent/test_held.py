"""Merging what could be read of the kubelet."""

import msgspec
import pytest
from support.kubelet import GIB, Kubelet
from support.tree import machine

from agent import observed, status
from agent.kubelet.held import KubeletPod, Owner, memory_by_zone, merge, uids, with_last
from agent.kubelet.reader import Reader, usable
from agent.machine import cpuset, sysfs
from agent.machine.gpus import Gpus
from agent.podresources.client import GrantedResources, PodResources
from agent.pods import GRACE_SECONDS, NodePod, PodPhase, UidRoster, pod
from clock import SYSTEM
from crds.settings import Settings
from kube.objects import ObjectMeta

GPU = "nvidia.com/gpu"
U1, U2 = Owner("u1", "main"), Owner("u2", "main")


@pytest.fixture
def hardware(tmp_path):
    return sysfs.read(machine("cxl-sparse", tmp_path / "sys"), tmp_path)


@pytest.fixture
def kubelet(tmp_path):
    """Zones 0, 2 and, without CPUs, 4; two GPUs, one device of two zones, one of none."""
    zones = {0: 64 * GIB, 2: 64 * GIB, 4: 128 * GIB}
    devices = {GPU: {"gpu-0": (0,), "gpu-1": (2,)}, "x.y/two": {"t": (0, 2)}, "x.y/none": {"n": ()}}
    return Kubelet(tmp_path / "kubelet", "0-4,6-31", zones, devices=devices, reserved="0,16")


@pytest.fixture
def read(kubelet):
    reader = Reader(Settings(agent_kubelet_directory=str(kubelet.folder)), SYSTEM)

    def of(*, served=True, without=()):
        for name in without:
            (kubelet.folder / name).unlink()
        if not served:
            return reader.read()
        with kubelet.serving():
            return reader.read()

    yield of
    reader.close()


def pods(*names):
    return [KubeletPod(name, "d", name) for name in names]


def test_the_state_is_exact_from_the_kubelets_own_files(kubelet, read, hardware):
    kubelet.hold("u1", namespace="d", pod="u1", cpus="1-2", memory=(("memory", (0,), GIB),), devices={GPU: ["gpu-0"]})
    kubelet.hold("u1", "setup", namespace="d", pod="u1", cpus="1-4", init=True)
    held = merge(read(), hardware, pods("u1"))
    assert held.missing == ()
    assert held.static_cpu
    assert held.static_memory
    assert held.cpus == {U1: {1, 2}, Owner("u1", "setup"): {1, 2, 3, 4}}  # the init container's still count
    assert cpuset.render(held.default) == "0,6-31"
    assert held.reserved == {0, 16}
    assert held.devices[GPU]["gpu-0"].owner == U1
    assert held.devices["x.y/two"]["t"].zones == (0, 2)
    assert held.devices["x.y/none"]["n"].zones == ()
    assert held.memory_zones[0].memory_map["memory"].free == 62 * GIB
    assert held.memory_zones[4].memory_map["memory"].free == 127 * GIB


def test_what_a_gone_pod_held_is_free(kubelet, read, hardware):
    nothing = merge(read(), hardware, [])
    both = ("memory", (0, 2), 100 * GIB)
    kubelet.hold("u1", namespace="d", pod="u1", cpus="1-2", memory=(both,), devices={GPU: ["gpu-0"]})
    kubelet.hold("u2", namespace="d", pod="u2", cpus="3")
    reading = read()
    assert uids(reading) == {"u1", "u2"}
    held = merge(reading, hardware, pods("u1", "u2"))
    assert held.memory_zones[0].cells == (0, 2)
    assert held.memory_zones[2].memory_map["memory"].free == 26 * GIB
    held = merge(reading, hardware, pods("u2"), {"u1"})
    assert held.default == nothing.default - {3}
    assert held.memory_zones == nothing.memory_zones  # the group of zones is no group any more
    assert held.devices == nothing.devices
    assert set(held.cpus) == {U2}


def test_a_group_stays_while_somebody_is_in_it(kubelet, read, hardware):
    for uid in ("u1", "u2"):
        kubelet.hold(uid, namespace="d", pod=uid, memory=(("memory", (0, 2), 50 * GIB),))
    held = merge(read(), hardware, pods("u2"), {"u1"})
    assert held.memory_zones[0].cells == (0, 2)
    assert held.memory_zones[0].number_of_assignments == 1
    free = sum(node.memory_map["memory"].free for zone, node in held.memory_zones.items() if zone != 4)
    assert free == 76 * GIB


def test_memory_of_a_group_is_spread_as_its_zones_gave_it(kubelet, read, hardware):
    kubelet.hold("u1", namespace="d", pod="u1", memory=(("memory", (0, 2), 70 * GIB),))
    kubelet.hold("u2", namespace="d", pod="u2", memory=(("memory", (0, 2), 20 * GIB),))
    held = merge(read(), hardware, pods("u1", "u2"))
    shares = memory_by_zone(held)
    assert shares == {
        U1: {"memory": {0: 63 * GIB, 2: 7 * GIB}},
        U2: {"memory": {2: 20 * GIB}},
    }
    for zone in (0, 2):
        given = sum(kinds["memory"].get(zone, 0) for kinds in shares.values())
        assert given == held.memory_zones[zone].memory_map["memory"].reserved


def test_observed_placements(kubelet, read, hardware):
    kubelet.hold(
        "u1", namespace="d", pod="u1", cpus="1,8-9", devices={GPU: ["gpu-1"], "x.y/two": ["t"], "x.y/none": ["n"]}
    )
    kubelet.hold("u1", "setup", namespace="d", pod="u1", cpus="1-2", memory=(("memory", (4,), GIB),), init=True)
    kubelet.hold("u2", namespace="d", pod="u2")
    found = observed.placements(merge(read(), hardware, pods("u1", "u2")), hardware)
    assert set(found) == {"u1"}  # u2 has nothing for itself
    assert [(use.zone, use.amounts, use.devices) for use in found["u1"].zones] == [
        (0, {"cpu": 2000, "x.y/two": 1}, {"x.y/two": ("t",)}),  # CPU 1 is both containers' and counts once
        (2, {"cpu": 2000, GPU: 1}, {GPU: ("gpu-1",)}),
        (4, {"memory": GIB}, {}),
    ]


def test_podresources_alone(kubelet, read, hardware):
    kubelet.hold(
        "u1", namespace="d", pod="u1", cpus="1-2", memory=(("memory", (0, 2), 70 * GIB),), devices={GPU: ["gpu-0"]}
    )
    exact = merge(read(), hardware, pods("u1"))
    files = ("cpu_manager_state", "memory_manager_state", "device-plugins/kubelet_internal_checkpoint")
    reading = read(without=files)
    held = merge(reading, hardware, pods("u1"))
    assert usable(reading)
    assert len(held.missing) == 3
    assert (held.default, held.cpus, held.reserved) == (exact.default, exact.cpus, exact.reserved)
    assert {zone: node.memory_map["memory"].free for zone, node in held.memory_zones.items()} == {
        zone: node.memory_map["memory"].free for zone, node in exact.memory_zones.items()
    }
    assert held.devices == exact.devices
    assert merge(reading, hardware, []).cpus == {}  # whose they are is known by the API server's pods alone


def test_files_alone(kubelet, read, hardware):
    kubelet.hold("u1", namespace="d", pod="u1", cpus="1-2", devices={GPU: ["gpu-0"]})
    reading = read(served=False)
    held = merge(reading, hardware, pods("u1"))
    assert usable(reading)
    assert held.reserved == {0}  # as the configuration has it
    assert held.devices[GPU]["gpu-0"].zones == (0,)  # of who holds it
    assert held.devices[GPU]["gpu-1"].zones == ()
    assert merge(reading, hardware, pods("u1"), remembered={GPU: {"gpu-1": (2,)}}).devices[GPU]["gpu-1"].zones == (2,)
    assert any("no such socket" in problem for problem in held.missing)


def test_nothing_at_all(hardware, tmp_path):
    reader = Reader(Settings(agent_kubelet_directory=str(tmp_path / "none")), SYSTEM)
    reading = reader.read()
    assert not usable(reading)
    assert len(reading.problems) == 5
    holds, reason, message = status.ready(merge(reading, hardware, []), hardware, Gpus(absent="no library"))
    assert (holds, reason) == (False, "StateIncomplete")
    assert "config.yaml: No such file" in message
    assert "no library" in message


# --- devices ------------------------------------------------------------------------------------------------------


def test_an_unhealthy_device_keeps_its_zone(kubelet, read, hardware):
    before = merge(read(), hardware, [])
    kubelet.sick.add("gpu-1")
    kubelet.write()
    reading = msgspec.structs.replace(read(), capacity={GPU: 2, "x.y/two": 1, "x.y/none": 1})
    held = merge(reading, hardware, [], remembered=before.remembered)
    assert [(name, device.healthy, device.zones) for name, device in held.devices[GPU].items()] == [
        ("gpu-0", True, (0,)),
        ("gpu-1", False, (2,)),
    ]
    assert held.missing == ()
    # A new agent never saw it: that there is one more is known, not where.
    held = merge(reading, hardware, [])
    assert list(held.devices[GPU]) == ["gpu-0"]
    assert held.missing == (f"which zones 1 unhealthy devices of {GPU} belong to",)


def test_a_device_that_the_node_no_longer_counts_is_gone(kubelet, read, hardware):
    before = merge(read(), hardware, [])
    kubelet.devices = {GPU: {"gpu-0": (0,)}}
    kubelet.write()
    reading = msgspec.structs.replace(read(), capacity={GPU: 1})
    held = merge(reading, hardware, [], remembered=before.remembered)
    assert {resource: list(devices) for resource, devices in held.devices.items()} == {GPU: ["gpu-0"]}


def test_a_plugin_that_registers_late(kubelet, read, hardware):
    """After a kubelet's restart: its devices are known, and none may be given out yet."""
    kubelet.hold("u1", namespace="d", pod="u1", devices={GPU: ["gpu-0"]})
    kubelet.late = {GPU}
    held = merge(read(), hardware, pods("u1"), remembered={GPU: {"gpu-0": (0,), "gpu-1": (2,)}})
    assert {name: device.healthy for name, device in held.devices[GPU].items()} == {"gpu-0": False, "gpu-1": False}
    assert held.devices[GPU]["gpu-0"].owner == U1
    assert held.devices[GPU]["gpu-1"].zones == (2,)
    kubelet.late = set()
    held = merge(read(), hardware, pods("u1"), remembered=held.remembered)
    assert all(device.healthy for device in held.devices[GPU].values())


def test_a_device_that_cannot_be_named_hides_no_other(kubelet, read, hardware):
    kubelet.devices = {GPU: {"gpu-0": (0,), "x" * 200: (2,)}}
    kubelet.write()
    held = merge(read(), hardware, [])
    assert list(held.devices[GPU]) == ["gpu-0"]
    assert held.missing == (f"1 devices of {GPU}, whose ids are empty or too long",)


def test_a_shared_device_has_one_holder_whatever_the_order(kubelet, read, hardware):
    """An init container's device that the app reuses is in the file twice, in any order."""
    for order in (("app", "setup"), ("setup", "app")):
        kubelet.held = {}
        for name in order:
            kubelet.hold("u1", name, namespace="d", pod="u1", devices={GPU: ["gpu-0"]})
        assert merge(read(), hardware, pods("u1")).devices[GPU]["gpu-0"].owner == Owner("u1", "app")


# --- pods ---------------------------------------------------------------------------------------------------------


def test_an_empty_list_is_a_kubelet_that_starts():
    held = {"main": GrantedResources(cpus=frozenset({1}))}
    last = PodResources({("d", "a"): held, ("d", "b"): held, ("d", "c"): held}, GrantedResources())
    living = [KubeletPod("a", "d", "a"), KubeletPod("b", "d", "b", finished=True)]
    empty = PodResources({}, GrantedResources(cpus=frozenset({1, 2})))
    kept = with_last(empty, last, living)
    assert set(kept.pods) == {("d", "a")}  # b has finished, c is not there any more
    assert kept.allocatable == empty.allocatable
    one = PodResources({("d", "z"): held}, GrantedResources())
    assert with_last(one, last, living) is one
    assert with_last(empty, None, living) is empty


def test_who_is_gone():
    now = [0.0]
    roster = UidRoster(lambda: now[0])
    a, b = KubeletPod("a", "d", "a"), KubeletPod("b", "d", "b", finished=True)
    assert roster.gone_holders({"a", "b", "new"}, [a, b], complete=True) == {"b"}
    assert roster.gone_holders({"a", "new"}, [], complete=False) == set()  # the list is not whole: nobody is gone
    assert roster.gone_holders({"a", "new"}, [], complete=True) == {"a"}
    now[0] = GRACE_SECONDS - 1
    assert roster.gone_holders({"new"}, [], complete=True) == set()  # perhaps it was bound a moment ago
    now[0] = GRACE_SECONDS
    assert roster.gone_holders({"new"}, [], complete=True) == {"new"}
    assert roster.gone_holders({"new"}, [KubeletPod("new", "d", "new")], complete=True) == set()


def test_who_came_and_went_between_two_looks_is_gone():
    """Refused after its first container was given something, and deleted at once: the kubelet's files still have it."""
    now = [0.0]
    roster = UidRoster(lambda: now[0])
    roster.record_uid("phantom")
    assert roster.gone_holders(set(), [], complete=True) == set()  # the files were read before it came
    assert roster.gone_holders({"phantom"}, [], complete=True) == {"phantom"}
    now[0] = 2 * GRACE_SECONDS
    assert roster.gone_holders({"phantom"}, [], complete=True) == {"phantom"}  # as long as the files have it
    assert roster.gone_holders(set(), [], complete=True) == set()
    assert roster.gone_holders({"phantom"}, [], complete=True) == set()  # and no longer


def test_a_static_pod_is_known_by_the_kubelets_uid():
    annotations = {"kubernetes.io/config.mirror": "h", "kubernetes.io/config.hash": "h"}
    metadata = ObjectMeta(name="etcd-n", namespace="kube-system", uid="mirror", annotations=annotations)
    assert pod(NodePod(metadata=metadata)) == KubeletPod("h", "kube-system", "etcd-n")
    forged = ObjectMeta(name="p", namespace="d", uid="u", annotations={"kubernetes.io/config.hash": "h"})
    assert pod(NodePod(metadata=forged, status=PodPhase(phase="Failed"))) == KubeletPod("u", "d", "p", finished=True)


def test_the_files_are_watched_over_renames(kubelet):
    reader = Reader(Settings(agent_kubelet_directory=str(kubelet.folder)), SYSTEM)
    before = reader.signature()
    assert reader.signature() == before
    kubelet.hold("u1", namespace="d", pod="u1", cpus="1")
    after = reader.signature()
    assert after != before
    (kubelet.folder / "cpu_manager_state").unlink()
    assert reader.signature() != after
