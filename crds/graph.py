"""How the graph of a FlexTopo is spelled: ids, types and attributes of its components and edges.

The agent writes it and everybody else reads it by these words. CPU sets are written as the kernel writes them
(``0-7,64-71``), other numbers in decimal; what is not known is left out.

Components (type, id, attributes)

- ``Socket``, ``socket-<package>``
- ``NUMANode``, ``numa-<kernel's number>``: ``cpus`` ("" without CPUs), ``memory`` and ``hugepages-2Mi`` ... (bytes),
  ``socket`` (where it has CPUs)
- ``CPUCoreGroup``, ``group-<lowest CPU>``: ``cpus``
- ``CPUCore``, ``core-<lowest CPU>``: ``cpus`` (its hardware threads), ``l3`` (id of its L3 cache)
- ``GPU``, ``gpu-<uuid>`` (``gpu-<PCI address>`` where the uuid is not known): ``uuid``, ``index``, ``model``,
  ``memory`` (MiB), ``pciAddress``, ``pcieRoot``, ``fault`` (what is wrong with it)
- ``NIC``, ``XPU``, ``PCIDevice``: ``nic-``, ``xpu-``, ``pci-<PCI address>``: ``pciAddress``, ``pcieRoot``
  (the host bridge, ``pci0000:16``, as drivers of DRA name it), ``class``, ``vendor`` and ``device`` (hexadecimal),
  ``names`` (network and RDMA names), ``virtualFunctions``

Edges (type, from and to, attributes)

- ``host``: socket to core group; ``contain``: core group to core; ``localized``: core group to NUMA zone
- ``nearby``: device to NUMA zone
- ``distance``: NUMA zone to NUMA zone, in both directions: ``distance`` (SLIT; of a zone to itself it is 10)
- ``link``: GPU to GPU, once a pair: ``kind`` as ``nvidia-smi topo -m`` prints it (``NV12``, ``PIX``, ``PXB``, ``PHB``,
  ``NODE``, ``SYS``), ``nvlinks`` (how many, where there are any) and ``nvlinkVersion`` (``4.0``), ``pcie`` (the PCIe
  level, which ``NV12`` hides)
"""

SOCKET = "Socket"
NUMA_NODE = "NUMANode"
CORE_GROUP = "CPUCoreGroup"
CORE = "CPUCore"
GPU = "GPU"
NIC = "NIC"
XPU = "XPU"
PCI_DEVICE = "PCIDevice"
PCIE_ROOT = "pcieRoot"  # the attribute of a device

HOST = "host"
CONTAIN = "contain"
LOCALIZED = "localized"
NEARBY = "nearby"
LINK = "link"
DISTANCE = "distance"

LOCAL_DISTANCE = 10  # ACPI fixes what a zone is from itself


def socket_id(number: int) -> str:
    """The component id of a socket."""
    return f"socket-{number}"


def zone_id(number: int) -> str:
    """The component id of a NUMA zone, by the kernel's number."""
    return f"numa-{number}"


def zone_number(component: str) -> int | None:
    """The kernel's number of a zone, by its component id; None for any other component."""
    head, _, number = component.partition("-")
    return int(number) if head == "numa" and number.isascii() and number.isdigit() else None


def group_id(lowest_cpu: int) -> str:
    """The component id of a core group."""
    return f"group-{lowest_cpu}"


def core_id(lowest_cpu: int) -> str:
    """The component id of a core."""
    return f"core-{lowest_cpu}"


def device_id(kind: str, name: str) -> str:
    """The component id of a device: ``kind`` is one of the types, ``name`` a uuid (GPU) or PCI address."""
    return f"{'pci' if kind == PCI_DEVICE else kind.lower()}-{name}"
