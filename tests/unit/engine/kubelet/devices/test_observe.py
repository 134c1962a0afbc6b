from published_links import MESH_PCIE, published

from engine.kubelet.devices.xpu import board
from engine.kubelet.machine import Container, Layout, Machine, NumaPlacement, PodShape, Qos, State, Zone, ZoneUse
from engine.kubelet.observed_devices import broken_promises

GPU, XPU = "nvidia.com/gpu", "kunlunxin.com/xpu"
MACHINE = Machine(
    node="n1",
    layout=Layout(
        zones=(Zone(id=0), Zone(id=1)),
        resources=("cpu", GPU, XPU),
        capacity=((8000, 4, 4),) * 2,
        allocatable=((8000, 4, 4),) * 2,
        links=(None, published("v100-dgx1", pcie=MESH_PCIE), board([1] * 4 + [2] * 4)),
    ),
    state=State(free=((8000, 4, 4),) * 2),
    device_ids={GPU: tuple(f"GPU-{i}" for i in range(8)), XPU: tuple(f"xpu{i}" for i in range(8))},
)


def shape(gpu_link="", **limits):
    names = {"gpu": GPU, "xpu": XPU}
    asked = tuple((names[name], amount) for name, amount in limits.items())
    return PodShape(containers=(Container(name="c", limits=asked),), qos=Qos.BURSTABLE, gpu_link=gpu_link)


def got(resource, *zones):
    uses = [
        ZoneUse(zone=zone, amounts={resource: len(ids)}, devices={resource: ids})
        for zone, ids in enumerate(zones)
        if ids
    ]
    return NumaPlacement(zones=tuple(uses))


def test_gpus_without_links_break_a_require():
    broken = got(GPU, ("GPU-1", "GPU-2"), ("GPU-4",))
    assert broken_promises(MACHINE, shape("require", gpu=3), broken) == (
        "3 of nvidia.com/gpu are not one NVLink clique; the largest among them has 2: GPU-1, GPU-2, GPU-4",
    )
    assert broken_promises(MACHINE, shape("prefer", gpu=3), broken) == ()
    assert broken_promises(MACHINE, shape(gpu=3), broken) == ()


def test_what_is_kept_or_not_known_is_no_trouble():
    assert broken_promises(MACHINE, shape("require", gpu=2), got(GPU, ("GPU-0",), ("GPU-4",))) == ()
    assert broken_promises(MACHINE, shape("require", gpu=1), got(GPU, ("GPU-0",))) == ()
    assert broken_promises(MACHINE, shape("require", gpu=2), got(GPU, ("GPU-0", "GPU-new"))) == ()
    without = NumaPlacement(zones=(ZoneUse(zone=0, amounts={GPU: 4}),))
    assert broken_promises(MACHINE, shape("require", gpu=4), without) == ()


def test_cards_across_zones_are_told():
    assert broken_promises(MACHINE, shape(xpu=2), got(XPU, ("xpu3",), ("xpu4",))) == (
        "2 of kunlunxin.com/xpu span 2 NUMA zones",
    )
    assert broken_promises(MACHINE, shape(xpu=2), got(XPU, ("xpu2", "xpu3"))) == ()
    everything = tuple(f"xpu{i}" for i in range(8))
    assert broken_promises(MACHINE, shape(xpu=8), got(XPU, everything[:4], everything[4:])) == ()
