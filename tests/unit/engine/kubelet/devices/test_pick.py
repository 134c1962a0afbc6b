import pytest
from published_links import MESH_PCIE, published

from engine.kubelet.device_manager import DeviceRefusal, pick, pick_zones, wants_links
from engine.kubelet.devices.choose import DeviceChoice
from engine.kubelet.devices.links import mask_of
from engine.kubelet.devices.xpu import XpuBoard, board

GPU = "nvidia.com/gpu"
XPU = "kunlunxin.com/xpu"
MESH = published("v100-dgx1", pcie=MESH_PCIE)
SWITCH = published("hgx-h100")
P800 = board([1] * 4 + [2] * 4)


def wanted(count, free, mode="", **more):
    return DeviceChoice(count=count, free=mask_of(free), mode=mode, **more)


def test_require_says_how_large_the_largest_free_clique_is():
    assert pick(GPU, MESH, wanted(4, range(8), "require")) == 0b1111
    assert pick(GPU, MESH, wanted(4, [0, 1, 2, 4, 5, 6], "require")) == DeviceRefusal(
        "GpuLink", "needs 4 of nvidia.com/gpu in one NVLink clique, and the largest free one has 3"
    )
    assert pick(GPU, MESH, wanted(2, [3, 4], "require")).message.endswith("has 1")
    later = pick(GPU, MESH, wanted(2, [0, 1, 2, 4, 5, 6], "require", later=2))
    assert later.message == "needs 4 of nvidia.com/gpu in one NVLink clique, and the largest free one has 3"


def test_require_is_about_gpus_only():
    assert pick(GPU, None, wanted(1, range(8), "require")) is None
    assert pick(GPU, None, wanted(2, range(8), "require")).reason == "GpuLink"
    assert pick("nvidia.com/mig-3g.40gb", None, wanted(2, range(8), "require")).reason == "GpuLink"
    assert pick("rdma/nic", None, wanted(8, range(8), "require")) is None
    assert pick(GPU, None, wanted(1, range(8), "require", held=1)).reason == "GpuLink"
    assert not wants_links("memory")


def test_prefer_and_no_annotation_never_refuse():
    assert pick(GPU, MESH, wanted(2, [3, 4], "prefer")) == 0b11000
    assert pick(GPU, MESH, wanted(2, [3, 4])) == 0b11000
    assert pick(GPU, None, wanted(2, [3, 4], "prefer")) is None
    assert pick(GPU, MESH, wanted(0, [3, 4], "require")) == 0


def test_one_gpu_under_require_keeps_the_largest_clique():
    assert pick(GPU, MESH, wanted(1, [3, 4, 5, 6, 7], "require")) == 0b1000


@pytest.mark.parametrize(
    ("free", "count", "said"),
    [
        (range(8), 3, "asks for 3 of kunlunxin.com/xpu, but only 1, 2, 4 or 8 can be given"),
        ([1, 2, 3, 4, 5, 6, 7], 8, "needs 8 of kunlunxin.com/xpu, but the free ones only allow tasks of 4, 2, 1"),
        ([3, 7], 2, "needs 2 of kunlunxin.com/xpu in one NUMA zone, but the free ones only allow tasks of 1, 1"),
        ([], 1, "needs 1 of kunlunxin.com/xpu in one NUMA zone, but none are free"),
    ],
)
def test_xpus_are_refused_by_their_rules(free, count, said):
    assert pick(XPU, P800, wanted(count, free)) == DeviceRefusal("XpuAllocation", said)
    numbers = (sum(card < 4 for card in free), sum(card >= 4 for card in free))
    assert pick_zones(XPU, XpuBoard(), count, free=numbers, zones=3, mode="", whole=count) == DeviceRefusal(
        "XpuAllocation", said
    )


def test_xpus_are_chosen_by_their_rules():
    assert pick(XPU, P800, wanted(2, [1, 2, 3, 5, 6, 7])) == 0b110
    assert pick_zones(XPU, XpuBoard(), 2, free=(3, 4), zones=3, mode="", whole=2) == (2, 0)
    assert pick_zones(XPU, XpuBoard(), 2, free=(3, 4), zones=2, mode="", whole=2) == (0, 2)
    assert pick_zones(XPU, XpuBoard(), 8, free=(4, 4), zones=3, mode="", whole=8) == (4, 4)
    assert isinstance(pick_zones(XPU, XpuBoard(), 8, free=(4, 4), zones=1, mode="", whole=8), DeviceRefusal)


def require_by_zone(graph, count, free, zones, whole=None):
    return pick_zones(GPU, graph, count, free=free, zones=zones, mode="require", whole=whole or count)


def test_amounts_alone_grant_what_holds_whichever_devices_are_taken():
    assert require_by_zone(SWITCH, 4, (1, 3), 0b11) is None
    assert require_by_zone(MESH, 2, (3, 0), 0b01) is None  # a quad is one clique
    assert require_by_zone(MESH, 4, (4, 4), 0b11) is None  # all are free: the best are a quad
    refused = require_by_zone(MESH, 4, (4, 3), 0b11)
    assert refused.reason == "GpuLink"
    assert "it is not known which ones are free" in refused.message
    assert require_by_zone(MESH, 5, (4, 4), 0b11).reason == "GpuLink"
    assert require_by_zone(MESH, 2, (4, 4), 0b11, whole=4).reason == "GpuLink"
    assert require_by_zone(None, 2, (4, 4), 0b11).reason == "GpuLink"
    assert require_by_zone(None, 1, (4, 4), 0b11) is None
    assert require_by_zone(published("4090-8x"), 2, (4, 4), 0b01).reason == "GpuLink"


def test_amounts_alone_let_everything_else_pass():
    assert pick_zones(GPU, MESH, 4, free=(2, 2), zones=3, mode="prefer", whole=4) is None
    assert pick_zones("rdma/nic", None, 4, free=(2, 2), zones=3, mode="require", whole=4) is None
    assert pick_zones(XPU, XpuBoard(), 0, free=(2, 2), zones=3, mode="", whole=0) is None
