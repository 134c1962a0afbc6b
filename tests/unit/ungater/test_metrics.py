"""What the controller's gauges say of a cluster, and that no scrape sees half of them."""

from prometheus_client import generate_latest

from engine.cluster.state import ClusterState
from engine.model import HOSTNAME_LABEL as HOST
from engine.model import Flavor, Node, Pod
from kube.resources import PODS
from kube.watch import Signal
from ungater.metrics import ControllerMetrics

BLOCK, RACK, GPU = "cloud/block", "cloud/rack", "nvidia.com/gpu"
LEVELS = (BLOCK, RACK, HOST)


def make_flavor(name="tas", levels=LEVELS):
    return Flavor(name=name, levels=levels)


def make_node(name, block="b1", rack="r1", **more):
    labels = {BLOCK: block, RACK: rack, HOST: name}
    return Node(name=name, labels=labels, allocatable={"cpu": 96_000, "memory": 1 << 39, GPU: 8, "pods": 110}, **more)


def make_pod(key, node, gpu, cpu=0):
    return Pod(key=key, node=node, requests={GPU: gpu, "cpu": cpu})


def make_state(nodes, pods=()):
    state = ClusterState()
    state.set_flavor(make_flavor())
    for node in nodes:
        state.set_node(node)
    for pod in pods:
        state.set_pod(pod)
    return state


NODES = [make_node(f"n{i}", f"b{i // 4}", f"r{i // 2 % 2}") for i in range(8)]

NOW = 100.0  # monotonic


def value(metrics, name, **labels):
    return metrics.registry.get_sample_value(name, labels)


def test_pods_without_a_record_are_told_by_source_and_by_the_leader_alone():
    metrics = ControllerMetrics()
    metrics.set_unrecorded({"NodeResourceTopology": 2})
    assert value(metrics, "topogate_unrecorded_pods", source="NodeResourceTopology") == 2
    metrics.end_leading()
    assert value(metrics, "topogate_unrecorded_pods", source="NodeResourceTopology") is None


def test_capacity_in_base_units():
    metrics = ControllerMetrics()
    state = make_state([*NODES, make_node("off", "b9", unschedulable=True)], pods=[make_pod("a", "n0", 3, 1500)])
    metrics.set_capacity(state, NOW)
    assert value(metrics, "topogate_flavor_free", flavor="tas", resource=GPU) == 61
    assert value(metrics, "topogate_flavor_free", flavor="tas", resource="cpu") == 8 * 96 - 1.5
    assert value(metrics, "topogate_flavor_allocatable", flavor="tas", resource=GPU) == 72
    assert value(metrics, "topogate_largest_free_domain", flavor="tas", level=RACK, resource=GPU) == 16
    assert value(metrics, "topogate_largest_free_domain", flavor="tas", level=HOST, resource=GPU) == 8
    gangs = {"flavor": "tas", "resource": GPU}
    assert value(metrics, "topogate_startable_gangs", level=HOST, devices="8", **gangs) == 7
    assert value(metrics, "topogate_startable_gangs", level=RACK, devices="64", **gangs) == 0
    assert value(metrics, "topogate_domains", flavor="tas", level=RACK) == 5
    assert value(metrics, "topogate_free_domains", flavor="tas", level=RACK) == 3
    assert value(metrics, "topogate_flavor_nodes", flavor="tas", state="ready") == 8
    assert value(metrics, "topogate_flavor_nodes", flavor="tas", state="cordoned") == 1


def test_nodes_without_a_level_label_are_counted():
    lost = make_node("lost")
    del lost.labels[RACK]
    metrics = ControllerMetrics()
    metrics.set_capacity(make_state([*NODES, lost]), NOW)
    assert value(metrics, "topogate_flavor_nodes", flavor="tas", state="unlabeled") == 1


def test_what_is_no_more_has_no_series():
    metrics, state = ControllerMetrics(), make_state(NODES)
    state.set_flavor(make_flavor("other", levels=LEVELS[:2]))
    metrics.set_capacity(state, NOW)
    assert value(metrics, "topogate_domains", flavor="other", level=RACK) == 4
    state.remove_flavor("other")
    metrics.set_capacity(state, NOW)
    assert value(metrics, "topogate_domains", flavor="other", level=RACK) is None
    assert value(metrics, "topogate_domains", flavor="tas", level=RACK) == 4
    metrics.set_pending({"NoQueue": 2})
    metrics.set_pending({"Pending": 1})
    assert value(metrics, "topogate_pending_workloads", reason="NoQueue") is None
    metrics.end_leading()
    text = generate_latest(metrics.registry).decode()
    assert not [line for line in text.splitlines() if line.startswith(("topogate_pending", "topogate_flavor"))]
    metrics.set_capacity(state, NOW)  # leads again, and nothing has changed
    assert value(metrics, "topogate_domains", flavor="tas", level=RACK) == 4


def test_nothing_is_computed_where_nothing_changed(monkeypatch):
    metrics, state = ControllerMetrics(), make_state(NODES)
    metrics.set_capacity(state, NOW)
    monkeypatch.setattr("ungater.metrics.Capacity", None)
    metrics.set_capacity(state, NOW)
    monkeypatch.undo()
    state.set_pod(make_pod("a", "n0", 8))
    metrics.set_capacity(state, NOW)
    assert value(metrics, "topogate_free_domains", flavor="tas", level=HOST) == 7


def test_informers_and_answers():
    metrics = ControllerMetrics()
    metrics.signal(PODS, Signal.EXPIRED, 1)
    metrics.signal(PODS, Signal.HANDLED, 0.002)
    metrics.signal(PODS, Signal.WATCHED, 300.0)
    metrics.answered("PATCH", 409)
    metrics.answered("GET", 0)
    metrics.set_heard([(PODS, 0.0)])
    assert value(metrics, "topogate_informer_last_heard_timestamp_seconds", resource="pods") is None
    metrics.set_heard([(PODS, 1700000000.5)])
    assert value(metrics, "topogate_informer_last_heard_timestamp_seconds", resource="pods") == 1700000000.5
    assert value(metrics, "topogate_informer_signals_total", resource="pods", signal="expired") == 1
    assert value(metrics, "topogate_informer_signals_total", resource="pods", signal="watched") is None
    assert value(metrics, "topogate_informer_handling_seconds_count") == 1
    assert value(metrics, "topogate_api_requests_total", method="PATCH", code="409") == 1
    assert value(metrics, "topogate_api_requests_total", method="GET", code="none") == 1
