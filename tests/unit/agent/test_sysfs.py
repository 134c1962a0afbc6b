import pytest
from support.tree import machine, unpack

from agent.machine import cpuset, pci, sysfs
from agent.machine.hardware import MachineCore

GIB = 1024**3


@pytest.fixture
def read(tmp_path):
    def of(name):
        root = machine(name, tmp_path)
        return sysfs.read(root, root / "proc")

    return of


def cpus(zone):
    return cpuset.render(zone.cpus)


def test_two_sockets_with_sub_numa_clusters(read):
    found = read("xeon-snc")
    assert found.problems == ()
    assert [(zone.id, cpus(zone)) for zone in found.zones] == [
        (0, "0-15,64-79"),
        (1, "16-31,80-95"),
        (2, "32-47,96-111"),
        (3, "48-63,112-127"),
    ]
    assert [list(zone.distances.values()) for zone in found.zones][1] == [12, 10, 21, 21]
    assert found.zones[2].memory == 131_072_000 * 1024
    assert found.zones[2].hugepages == {"hugepages-1Gi": 8 * GIB}
    assert len(found.cores) == 64
    assert found.cores[0] == MachineCore((0, 64), zone=0, socket=0, l3=0)
    assert found.cores[-1] == MachineCore((63, 127), zone=3, socket=1, l3=1)
    assert found.threads_per_core == 2


def test_devices_of_a_server(read):
    found = read("xeon-snc").by_address()
    assert sorted(found) == [
        f"0000:{bdf}" for bdf in ("16:00.0", "16:00.1", "3a:00.0", "3b:00.0", "5e:00.0", "b1:00.0")
    ]
    port = found["0000:16:00.0"]
    assert (port.zone, port.names, port.functions) == (0, ("ens1f0np0", "mlx5_0"), 4)
    assert pci.is_network(port)
    assert found["0000:3a:00.0"].zone == 1  # numa_node is -1, but all its local CPUs are in one zone
    assert found["0000:b1:00.0"].zone is None  # every CPU is local to it
    assert pci.is_gpu(found["0000:5e:00.0"])


def test_a_zone_a_quarter_socket_and_an_l3_eight_cores(read):
    found = read("epyc-dgx")
    assert found.problems == ()
    assert len(found.zones) == 8
    assert len(found.cores) == 128
    assert len({core.l3 for core in found.cores}) == 16
    assert {core.socket for core in found.cores if core.zone < 4} == {0}
    assert found.zones[5].distances == {0: 32, 1: 32, 2: 32, 3: 32, 4: 12, 5: 10, 6: 12, 7: 12}
    assert found.zones[5].hugepages == {"hugepages-1Gi": 8 * GIB, "hugepages-2Mi": GIB}
    gpus = [device for device in found.pci if pci.is_gpu(device)]
    assert [gpu.zone for gpu in gpus] == [3, 3, 1, 1, 7, 7, 5, 5]
    assert len([device for device in found.pci if pci.is_network(device)]) == 8


def test_pcie_levels(read):
    found = read("epyc-dgx").by_address()

    def level(one, other):
        assert pci.level(found[f"0000:{one}:00.0"], found[f"0000:{other}:00.0"]) == pci.level(
            found[f"0000:{other}:00.0"], found[f"0000:{one}:00.0"]
        )
        return pci.level(found[f"0000:{one}:00.0"], found[f"0000:{other}:00.0"])

    assert level("07", "0c") == "PIX"  # a GPU and the adapter on its own switch
    assert level("07", "0f") == "PXB"  # two switches below one root port
    assert level("07", "47") == "SYS"


def device(*bridges, zone=0):
    return pci.PciDevice(bridges[-1], 0x030200, pci.NVIDIA, 1, path=bridges, zone=zone)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (device("pci0000:00", "p", "a"), device("pci0000:00", "p", "b"), "PIX"),
        (device("pci0000:00", "p", "u", "d0", "a"), device("pci0000:00", "p", "u", "d1", "b"), "PIX"),
        (device("pci0000:00", "p", "u", "d0", "v", "e", "a"), device("pci0000:00", "p", "u", "d1", "b"), "PXB"),
        (device("pci0000:00", "p", "a"), device("pci0000:00", "q", "b"), "PHB"),
        (device("pci0000:00", "p", "a"), device("pci0000:40", "p", "b"), "NODE"),
        (device("pci0000:00", "p", "a"), device("pci0000:40", "p", "b", zone=1), "SYS"),
        (device("pci0000:00", "p", "a", zone=None), device("pci0000:40", "p", "b", zone=None), "SYS"),
    ],
)
def test_how_two_devices_are_connected(one, other, expected):
    assert pci.level(one, other) == pci.level(other, one) == expected


def test_a_kernel_without_numa(read):
    found = read("vm")
    assert found.problems == ()
    (zone,) = found.zones
    assert (zone.id, cpus(zone), zone.memory, zone.distances) == (0, "0-2", 8_148_540 * 1024, {0: 10})
    assert zone.hugepages == {"hugepages-2Mi": 128 * 1024**2}
    assert found.threads_per_core == 1
    (card,) = found.pci
    assert (card.zone, card.names) == (0, ("eth0",))  # numa_node is -1: there is only one zone


def test_sparse_zones_memory_without_cpus_and_broken_parts(read):
    found = read("cxl-sparse")
    assert [(zone.id, cpus(zone)) for zone in found.zones] == [(0, "0-4,6-7,16-23"), (2, "8-15,24-31"), (4, "")]
    assert found.zones[1].distances == {0: 21, 2: 10, 4: 24}
    assert found.zones[2].memory == 128 * GIB
    assert [core.cpus for core in found.cores if len(core.cpus) == 1] == [(21,)]  # what is left of the broken core
    assert [problem.split(":")[0] for problem in found.problems] == [
        "devices/system/cpu/cpu5/topology/thread_siblings_list",
        "bus/pci/devices/0000",
    ]
    (gpu,) = found.pci
    assert gpu.zone == 2  # the kernel has no zone 7; by its local CPUs


def test_nothing_to_read_is_no_crash(tmp_path):
    found = sysfs.read(tmp_path / "sys", tmp_path / "proc")
    assert found.zones[0].cpus == frozenset()
    assert [problem.rpartition(": ")[2] for problem in found.problems] == ["No such file or directory"] * 2


def test_wrong_numbers_are_told(tmp_path):
    root = unpack(
        "devices/system/cpu/online = 0-1\ndevices/system/node/online = 0-1\n"
        "devices/system/node/node{0-1}/cpulist = {i}\ndevices/system/node/node0/distance = 10\n"
        "devices/system/node/node1/distance = 20 x\ndevices/system/node/node{0-1}/meminfo = Node {i} MemTotal: 1 kB\n"
        "devices/system/cpu/cpu{0-1}/topology/thread_siblings_list = {1-i}\n",
        tmp_path,
    )
    found = sysfs.read(root, root)
    assert found.cores == ()
    assert [problem.rpartition(": ")[2] for problem in found.problems] == [
        "1 distances for 2 zones",
        "'x'",
        *["not among its own siblings"] * 2,
    ]


@pytest.mark.parametrize("text", ["", "0", "0-3", "0-3,8", "0,2,4,6-7,64-71"])
def test_cpu_lists_are_what_they_were(text):
    assert cpuset.render(cpuset.parse(text)) == text


@pytest.mark.parametrize("text", ["a", "3-1", "-1", "1-", "0-99999999", "1--2", "0 1"])
def test_no_cpu_list(text):
    with pytest.raises(ValueError, match="is no CPU list"):
        cpuset.parse(text)
