"""A described machine as the files of sysfs and procfs that a kubelet, its cAdvisor and ``topogate agent`` read."""

from pathlib import Path

from localcluster.kubelets.hardware import PlayedCore, PlayedHardware, PlayedZone, cpu_list, mask_of

KIB = 1024
_L3_KIB = 32768
# What cAdvisor asks of /proc/cpuinfo; topology is read from sysfs.
_CPU = (
    "processor\t: {cpu}\nvendor_id\t: GenuineIntel\nphysical id\t: {socket}\ncore id\t\t: {core}\n"
    "cpu MHz\t\t: 2000.000\n"
)


def write(hardware: PlayedHardware, sysfs: Path, procfs: Path) -> None:
    """Write the trees; folders that are there already are filled in.

    Of sysfs: ``devices/system/cpu`` and ``devices/system/node``; of procfs: ``cpuinfo`` and ``meminfo``.
    """
    cpus, nodes = sysfs / "devices/system/cpu", sysfs / "devices/system/node"
    everything = cpu_list(hardware.cpus)
    for name in ("online", "possible", "present"):
        _write_file(cpus / name, everything)
    _write_file(nodes / "online", cpu_list((1 << len(hardware.zones)) - 1))
    described = []
    number = 0
    for zone, mask in zip(hardware.zones, hardware.zone_cpus, strict=True):
        _node(nodes / f"node{zone.id}", zone, cpu_list(mask))
        for core in zone.cores:
            for cpu in core.cpus:
                _cpu(cpus / f"cpu{cpu}", core, number, zone, mask)
                link = nodes / f"node{zone.id}" / f"cpu{cpu}"
                # The folder may be of an earlier start.
                if not link.is_symlink():
                    link.symlink_to(f"../../cpu/cpu{cpu}")
                described.append((cpu, _CPU.format(cpu=cpu, socket=zone.socket, core=number)))
            number += 1
    _write_file(procfs / "cpuinfo", "\n".join(text for _, text in sorted(described)))
    kib = sum(zone.memory for zone in hardware.zones) // KIB
    _write_file(
        procfs / "meminfo",
        f"MemTotal: {kib:8d} kB\nMemFree: {kib:8d} kB\nMemAvailable: {kib:8d} kB\n"
        "SwapTotal:        0 kB\nHugePages_Total:       0\nHugepagesize:       2048 kB",
    )


def _node(folder: Path, zone: PlayedZone, cpus: str) -> None:
    _write_file(folder / "cpulist", cpus)
    _write_file(folder / "distance", " ".join(map(str, zone.distances)))
    used = f"Node {zone.id} MemFree: {zone.memory // KIB:8d} kB\nNode {zone.id} MemUsed:        0 kB"
    _write_file(folder / "meminfo", f"Node {zone.id} MemTotal: {zone.memory // KIB:8d} kB\n{used}")
    pages = folder / "hugepages" / "hugepages-2048kB"
    for name in ("nr_hugepages", "free_hugepages", "surplus_hugepages"):
        _write_file(pages / name, "0")


def _cpu(folder: Path, core: PlayedCore, number: int, zone: PlayedZone, shared: int) -> None:
    """One CPU. A zone's CPUs share one L3: ``shared``."""
    topology = folder / "topology"
    _write_file(topology / "physical_package_id", str(zone.socket))
    _write_file(topology / "core_id", str(number))
    threads = cpu_list(mask_of(iter(core.cpus)))
    for name in ("thread_siblings_list", "core_cpus_list"):
        _write_file(topology / name, threads)
    _write_file(folder / "online", "1")
    cache = folder / "cache" / "index3"
    of = {"id": str(zone.id), "level": "3", "type": "Unified", "size": f"{_L3_KIB}K"}
    for name, value in {**of, "shared_cpu_list": cpu_list(shared), "shared_cpu_map": _mask(shared)}.items():
        _write_file(cache / name, value)


def _mask(members: int) -> str:
    """A CPU set as sysfs writes masks: words of 32 bits, the highest first."""
    # At least one word, also for an empty set.
    words = [f"{members >> shift & 0xFFFFFFFF:08x}" for shift in range(0, max(members.bit_length(), 1), 32)]
    return ",".join(reversed(words))


def _write_file(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")
