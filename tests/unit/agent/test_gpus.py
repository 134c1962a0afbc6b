import json

import pytest
from support.nvml import Recording, recorded
from support.tree import DATA, machine

from agent.machine import gpus, pci, sysfs
from agent.machine.gpus import Gpu, Gpus
from agent.machine.hardware import Hardware, MachineZone, PciDevice

LOST = {"error": 15}
NO_MACHINE = Hardware(zones=(MachineZone(0), MachineZone(1)))


def kinds(found):
    """The matrix that ``nvidia-smi topo -m`` prints."""
    order = {gpu.address: i for i, gpu in enumerate(found.gpus)}
    matrix = [["X"] * len(order) for _ in order]
    for link in found.links:
        i, j = order[link.one], order[link.other]
        matrix[i][j] = matrix[j][i] = link.kind
    return matrix


@pytest.fixture
def dgx(tmp_path):
    root = machine("epyc-dgx", tmp_path)
    return sysfs.read(root, root)


def test_nvswitch(dgx):
    found = gpus.read(recorded("dgx-a100"), dgx)
    assert found.problems == ()
    assert found.absent == ""
    assert [gpu.zone for gpu in found.gpus] == [3, 3, 1, 1, 7, 7, 5, 5]
    assert {(gpu.model, gpu.memory, gpu.fault) for gpu in found.gpus} == {("NVIDIA A100-SXM4-80GB", 81920, "")}
    assert kinds(found) == [["X" if i == j else "NV12" for j in range(8)] for i in range(8)]
    assert [link.pcie for link in found.links if link.one == "0000:07:00.0"] == ["PXB", *["SYS"] * 6]


def test_the_version_of_nvlinks_is_that_of_the_older_end(dgx):
    nvml = recorded("dgx-a100")
    assert {link.version for link in gpus.read(nvml, dgx).links} == {""}  # not recorded
    for gpu in range(8):
        for link in range(12):
            nvml.calls[f"nvmlDeviceGetNvLinkVersion({gpu}, {link})"] = 5 if gpu else 4
    found = gpus.read(nvml, dgx)
    first = found.gpus[0].address
    assert {(first in {link.one, link.other}, link.version) for link in found.links} == {(True, "3.0"), (False, "3.1")}
    nvml.calls["nvmlDeviceGetNvLinkVersion(1, 0)"] = 99  # newer than we know
    assert {link.version for link in gpus.read(nvml, dgx).links} == {"3.0", "3.1"}
    assert not any(link.version for link in gpus.read(recorded("rtx4090"), NO_MACHINE).links)


def test_a_mesh_of_direct_links():
    found = gpus.read(recorded("v100-mesh"), NO_MACHINE)
    # Published matrix of a DGX-1, in the order of the GPUs.
    row = [link.kind for link in found.links if link.one == found.gpus[0].address]
    assert row == ["NV1", "NV1", "NV2", "NV2", "SYS", "SYS", "SYS"]
    weight = {"SYS": 10, "NODE": 20, "PHB": 30, "PXB": 40, "PIX": 50}
    sums = [link.nvlinks * 100 + weight[link.pcie] for link in found.links if link.one == found.gpus[0].address]
    assert sums == [150, 130, 230, 210, 10, 10, 10]


def test_gpus_without_links_and_zones_from_nvml():
    found = gpus.read(recorded("rtx4090"), NO_MACHINE)
    assert [gpu.zone for gpu in found.gpus] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert {link.kind for link in found.links} == {"SYS"}
    assert len(found.links) == 28


def test_one_gpu_of_a_virtual_machine():
    """Recorded of a real H200 (driver 580.159) that a virtual machine of one zone has to itself."""
    bus = PciDevice("0000:00:06.0", 0x030200, pci.NVIDIA, 0x2335, ("pci0000:00", "0000:00:06.0"), 0)
    found = gpus.read(recorded("h200"), Hardware(zones=(MachineZone(0),), pci=(bus,)))
    gpu = Gpu("0000:00:06.0", "GPU-0a200000-0000-4000-8000-000000000000", 0, "NVIDIA H200", 143771, 0)
    assert found == Gpus((gpu,)), "NVLinks that the driver does not support are no fault"


def test_a_lost_gpu_hides_no_other(dgx):
    nvml = recorded("dgx-a100")
    before = gpus.read(nvml, dgx)
    nvml.calls["nvmlDeviceGetHandleByIndex(2)"] = LOST
    found = gpus.read(nvml, dgx, before)
    assert [bool(gpu.fault) for gpu in found.gpus] == [False, False, True, *[False] * 5]
    assert found.gpus[2].uuid == before.gpus[2].uuid
    assert found.links == before.links
    assert [problem for problem in found.problems if "GPU 2" in problem]
    assert gpus.read(recorded("dgx-a100"), dgx, found) == before


def test_a_gpu_that_was_lost_before_the_first_look_is_known_by_its_place(dgx):
    nvml = recorded("dgx-a100")
    nvml.calls["nvmlDeviceGetUUID(2)"] = LOST
    found = gpus.read(nvml, dgx)
    (lost,) = [gpu for gpu in found.gpus if gpu.fault]
    assert (lost.address, lost.uuid, lost.zone) == ("0000:47:00.0", "", 1)
    assert len(found.gpus) == 8
    assert len(found.links) == 21  # between the other seven


def test_a_gpu_that_the_driver_no_longer_lists(dgx):
    nvml = recorded("dgx-a100")
    before = gpus.read(nvml, dgx)
    shifted = {}
    for call, answer in nvml.calls.items():  # GPU 0 is off the bus: the others move up
        function, arguments = call.rstrip(")").split("(")
        numbers = [int(text) for text in arguments.split(", ") if text]
        devices = 2 if function == "nvmlDeviceGetTopologyCommonAncestor" else min(1, len(numbers))
        if all(numbers[:devices]):
            moved = [number - 1 for number in numbers[:devices]] + numbers[devices:]
            shifted[f"{function}({', '.join(map(str, moved))})"] = answer
    shifted |= {f"nvmlDeviceGetHandleByIndex({i})": i for i in range(7)} | {"nvmlDeviceGetCount()": 7}
    found = gpus.read(Recording(shifted), dgx, before)
    assert {gpu.uuid for gpu in found.gpus} == {gpu.uuid for gpu in before.gpus}
    assert [gpu.uuid for gpu in found.gpus if gpu.fault] == [before.gpus[0].uuid]
    assert found.links == before.links


@pytest.mark.parametrize(
    ("call", "answer", "fault"),
    [
        ("nvmlDeviceGetRemappedRows(3)", [0, 1, 0, 1], "a memory row could not be remapped"),
        ("nvmlDeviceGetRemappedRows(3)", [0, 1, 1, 0], ""),  # pending until the next reset
        ("nvmlDeviceGetMemoryInfo(3)", {"error": 16}, "GPU requires restart"),
        ("nvmlDeviceGetMemoryInfo(3)", {"error": 3}, ""),  # not supported is no fault
    ],
)
def test_health(dgx, call, answer, fault):
    nvml = recorded("dgx-a100")
    nvml.calls[call] = answer
    found = gpus.read(nvml, dgx)
    assert found.gpus[3].fault == fault
    assert not any(gpu.fault for gpu in found.gpus if gpu.index != 3)
    assert len(found.links) == 28


def test_an_inactive_link_does_not_count(dgx):
    nvml = recorded("dgx-a100")
    nvml.calls["nvmlDeviceGetNvLinkState(0, 4)"] = 0
    nvml.calls["nvmlDeviceGetNvLinkState(0, 5)"] = 0
    found = gpus.read(nvml, dgx)
    assert {link.kind for link in found.links if "0000:07:00.0" in {link.one, link.other}} == {"NV10"}


def test_an_old_driver_names_no_remote_type():
    nvml = recorded("dgx-a100")
    nvml.calls = {call: answer for call, answer in nvml.calls.items() if "RemoteDeviceType" not in call}
    assert {link.kind for link in gpus.read(nvml, NO_MACHINE).links} == {"NV12"}


@pytest.mark.parametrize("error", [12, 9, 18])
def test_no_driver_is_no_gpu(error):
    found = gpus.read(Recording({"nvmlInit()": {"error": error}}), NO_MACHINE)
    assert found.gpus == ()
    assert found.absent


@pytest.mark.parametrize(
    ("calls", "fault"),
    [
        ({"nvmlInit()": None, "nvmlDeviceGetCount()": {"error": 999}}, "Unknown Error"),
        ({"nvmlInit()": {"error": 9}}, "Driver Not Loaded"),
    ],
)
def test_nvml_that_fails_altogether_keeps_what_was_known(dgx, calls, fault):
    before = gpus.read(recorded("dgx-a100"), dgx)
    found = gpus.read(Recording(calls), dgx, before)
    assert [gpu.uuid for gpu in found.gpus] == [gpu.uuid for gpu in before.gpus]
    assert all(gpu.fault == fault for gpu in found.gpus)
    assert found.links == before.links


def test_pcie_level_by_sysfs_where_nvml_does_not_know():
    nvml = recorded("rtx4090")
    nvml.calls = {call: answer for call, answer in nvml.calls.items() if "CommonAncestor" not in call}
    devices = tuple(
        PciDevice(f"0000:{bdf}:00.0", 0x030000, 0x10DE, 1, ("pci0000:00", "p" if i < 2 else f"p{i}", bdf), zone=0)
        for i, bdf in enumerate(["01", "25", "41", "61", "81", "a1", "c1", "e1"])
    )
    found = gpus.read(nvml, Hardware((MachineZone(0),), pci=devices))
    assert [link.kind for link in found.links][:2] == ["PIX", "PHB"]


def test_every_call_that_is_recorded_is_one_that_nvml_has():
    import pynvml

    for path in (DATA / "nvml").glob("*.json"):
        for call in json.loads(path.read_text()):
            assert hasattr(pynvml, call.partition("(")[0])


def test_handles_are_given_back(dgx):
    nvml = recorded("dgx-a100")
    gpus.read(nvml, dgx)
    gpus.read(nvml, dgx, Gpus((Gpu("a"),)))
    assert nvml.made["nvmlInit"] == nvml.made["nvmlShutdown"] == 2
