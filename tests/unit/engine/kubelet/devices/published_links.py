"""The published link matrices as graphs."""

import json
from pathlib import Path

from engine.kubelet.devices.links import from_words

DATA = json.loads((Path(__file__).parents[4] / "data" / "gpu-links.json").read_text())
MACHINES = sorted(name for name in DATA if name != "weights")

# The PCIe tree of an 8 x V100 mesh: two GPUs behind each switch, two switches behind each CPU.
MESH_PCIE = [
    ["X" if a == b else "PIX" if a // 2 == b // 2 else "PHB" if a // 4 == b // 4 else "SYS" for b in range(8)]
    for a in range(8)
]


def published(name, *, pcie=()):
    machine = DATA[name]
    numa = machine["numa"] or machine["socket"]
    return from_words(machine["matrix"], pcie=pcie, zones=[1 << zone for zone in numa])
