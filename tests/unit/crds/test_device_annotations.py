import pytest
from pydantic import ValidationError

from crds.device_annotations import device_annotations, indexes_of
from crds.device_settings import DeviceAnnotation

XPU = "kunlunxin.com/xpu"
GPU = "nvidia.com/gpu"
CARDS = [f"gpu-a07-kunlun-{card}" for card in (3, 0, 1, 2, 7, 6, 5, 4)]


def test_a_pod_on_xpus_gets_the_indexes_of_its_cards():
    chosen = {XPU: [f"gpu-a07-kunlun-{card}" for card in (2, 0, 3, 1)], GPU: ["GPU-1"]}
    assert device_annotations(chosen, {XPU: CARDS, GPU: ["GPU-1"]}) == {"BAIDU_COM_DEVICE_IDX": "0,1,2,3"}


def test_a_pod_without_xpus_gets_nothing():
    assert device_annotations({}, {XPU: CARDS}) == {}
    assert device_annotations({XPU: []}, {XPU: CARDS}) == {}
    assert device_annotations({GPU: ["GPU-1"]}, {GPU: ["GPU-1"]}) == {}


def test_a_device_that_the_machine_does_not_have_is_no_index():
    assert device_annotations({XPU: ["gpu-a07-kunlun-9"]}, {XPU: CARDS}) == {}


def test_ids_for_plugins_that_read_ids():
    rules = [DeviceAnnotation(resource=GPU, key="nvidia.com/use-gpuuuid", value="id")]
    chosen = {GPU: ["GPU-b", "GPU-a"]}
    assert device_annotations(chosen, {GPU: ["GPU-a", "GPU-c", "GPU-b"]}, rules) == {
        "nvidia.com/use-gpuuuid": "GPU-a,GPU-b"
    }


@pytest.mark.parametrize(
    ("ids", "indexes"),
    [
        (["0", "1", "2"], [0, 1, 2]),
        (["xpu2", "xpu0", "xpu1"], [2, 0, 1]),
        (["card1", "card0"], [1, 0]),
        (["0000:9f:00.0", "0000:1f:00.0", "0000:3f:00.0"], [2, 0, 1]),
        (["card-10", *(f"card-{i}" for i in range(10))], [10, *range(10)]),
    ],
)
def test_indexes_come_from_ids(ids, indexes):
    assert indexes_of(ids) == dict(zip(ids, indexes, strict=True))


@pytest.mark.parametrize(
    "ids", [["a", "b"], ["card-1", "card-2"], ["card-0", "other-0"], ["GPU-3f1c00", "GPU-3f1c01"], ["card-0", "b"]]
)
def test_other_ids_tell_no_index(ids):
    assert indexes_of(ids) == {}
    assert device_annotations({XPU: ids[:1]}, {XPU: ids}) == {}


def test_a_rule_names_what_is_written():
    with pytest.raises(ValidationError):
        DeviceAnnotation(resource=GPU, key="k", value="name")
