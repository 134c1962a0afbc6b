"""What is known of tools that write the labels of levels: which labels they gave up, and which they guess from cables.

Rules
- Topograph 1.0 writes keys of its own (``fabric.topograph.run/tier-N``, 0 next to the node) and takes nothing off that
  0.x wrote (``network.topology.nvidia.com/leaf`` ...): those stay as they were at the upgrade.
- On an InfiniBand fabric with several spine switches Topograph gives each leaf switch one of the spines that it is
  connected to, the same to all leaves that reach the same spines. One dead cable makes that two groups.
"""

from collections.abc import Collection, Mapping
from typing import Final

SUPERSEDED: Final[Mapping[str, str]] = {
    "network.topology.nvidia.com/core": "fabric.topograph.run/tier-2",
    "network.topology.nvidia.com/spine": "fabric.topograph.run/tier-1",
    "network.topology.nvidia.com/leaf": "fabric.topograph.run/tier-0",
    "network.topology.nvidia.com/accelerator": "accelerator.topograph.run/domain",
}
OF_SPINES: Final = frozenset(
    {
        "network.topology.nvidia.com/core",
        "network.topology.nvidia.com/spine",
        *(f"fabric.topograph.run/tier-{tier}" for tier in range(1, 6)),
    }
)


def lopsided(parts: Collection[int]) -> bool:
    """Whether domains that a fabric is divided into have so unlike numbers of parts that a cable may be dead.

    ``parts``: how many domains of the next level each has.
    """
    return len(parts) > 1 and 2 * min(parts) <= max(parts)


def lopsided_in_words(level: str, below: str, most: int, least: int) -> str:
    """The same for a person."""
    return (
        f"the domains of {level} have {least} to {most} of {below}: if all leaf switches are connected to the same "
        f"spines, a cable between switches may be dead, and the tool may group the nodes differently the next time"
    )


def superseded_in_words(level: str) -> str:
    """What is wrong with a level by a label that its tool gave up."""
    return (
        f"the label {level} of a level is no longer updated: the tool that wrote it now writes {SUPERSEDED[level]}, "
        f"which nodes have too"
    )
