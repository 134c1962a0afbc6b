"""The node labels by which clouds and tools tell where a node is: public configurations, the widest level first.

Names are what jobs may ask for levels by. Each source has its own words, and ``block`` and ``rack`` for the levels that
are nearest to that, so that one manifest works on many clusters.
"""

import re
from typing import Final

import msgspec

from crds.constants import HOSTNAME_LABEL
from crds.topology_labels import SUPERSEDED

HOST: Final = "host"
AUTO: Final = "auto"


class KnownLevel(msgspec.Struct, frozen=True):
    """One label key, and the names of the level. ``nvlink``: its domains are those of NVLink, not of the network."""

    key: str
    names: tuple[str, ...]
    nvlink: bool = False


class LabelSource(msgspec.Struct, frozen=True):
    """Who sets the labels, by the word that ``--topology`` takes.

    ``reused``: racks are named alike in every block. ``writer``: the program that writes them again and again, so that
    nobody mends them on nodes; "" where people do.
    """

    word: str
    title: str
    levels: tuple[KnownLevel, ...]
    reused: bool = False
    writer: str = ""


HOSTS: Final = KnownLevel(HOSTNAME_LABEL, (HOST,))
CLIQUE: Final = KnownLevel("nvidia.com/gpu.clique", ("nvlink",), nvlink=True)
SOURCES: Final = (
    LabelSource(
        "gke",
        "Google GKE (A3, A4 and TPU nodes)",
        (
            KnownLevel("cloud.google.com/gce-topology-block", ("block",)),
            KnownLevel("cloud.google.com/gce-topology-subblock", ("subblock", "rack")),
            KnownLevel("cloud.google.com/gce-topology-host", ("machine",)),
        ),
        writer="GKE",
    ),
    LabelSource(
        "eks",
        "Amazon EKS (instance topology)",
        (
            KnownLevel("topology.k8s.aws/network-node-layer-1", ("layer-1",)),
            KnownLevel("topology.k8s.aws/network-node-layer-2", ("layer-2", "block")),
            KnownLevel("topology.k8s.aws/network-node-layer-3", ("layer-3", "rack")),
            KnownLevel("topology.k8s.aws/ultraserver-id", ("ultraserver", "nvlink"), nvlink=True),
        ),
        writer="EKS",
    ),
    LabelSource(
        "oke",
        "Oracle OKE (RDMA cluster networks)",
        (
            KnownLevel("oci.oraclecloud.com/rdma.hpc_island_id", ("island",)),
            KnownLevel("oci.oraclecloud.com/rdma.network_block_id", ("network-block", "block")),
            KnownLevel("oci.oraclecloud.com/rdma.local_block_id", ("local-block", "rack")),
        ),
        writer="OKE",
    ),
    LabelSource(
        "coreweave",
        "CoreWeave CKS",
        (
            KnownLevel("backend.coreweave.cloud/fabric", ("fabric",)),
            KnownLevel("backend.coreweave.cloud/superpod", ("superpod", "block")),
            KnownLevel("backend.coreweave.cloud/leafgroup", ("leafgroup", "rack")),
            KnownLevel("ds.coreweave.com/nvlink.domain", ("nvlink",), nvlink=True),
        ),
        writer="CKS",
    ),
    LabelSource(
        "nebius",
        "Nebius",
        (
            KnownLevel("topology.nebius.com/tier-2", ("tier-2",)),
            KnownLevel("topology.nebius.com/tier-1", ("tier-1", "block")),
            KnownLevel("topology.nebius.com/tier-0", ("tier-0", "rack")),
        ),
        writer="Nebius",
    ),
    LabelSource(
        "topograph",
        "NVIDIA Topograph",
        (
            *(KnownLevel(f"fabric.topograph.run/tier-{tier}", (f"tier-{tier}",)) for tier in (5, 4, 3, 2)),
            KnownLevel("fabric.topograph.run/tier-1", ("tier-1", "block")),
            KnownLevel("fabric.topograph.run/tier-0", ("tier-0", "rack")),
            KnownLevel("accelerator.topograph.run/domain", ("nvlink",), nvlink=True),
        ),
        writer="Topograph",
    ),
    LabelSource(
        "local",
        "the labels of `topogate local nodes`",
        (
            KnownLevel("cloud-provider.com/topology-block", ("block",)),
            KnownLevel("cloud-provider.com/topology-rack", ("rack",)),
        ),
        reused=True,
    ),
    LabelSource(
        "nvl72",
        "NVLink domains as NVIDIA's GPU feature discovery tells them",
        (CLIQUE,),
        writer="NVIDIA's GPU feature discovery",
    ),
    LabelSource("zone", "availability zones", (KnownLevel("topology.kubernetes.io/zone", ("zone",)),)),
)
WRITERS: Final = {
    **dict.fromkeys(SUPERSEDED, "Topograph"),
    **{level.key: source.writer for source in SOURCES if source.writer for level in source.levels},
}
UNIQUE: Final = frozenset(level.key for source in SOURCES if not source.reused for level in source.levels)
CLOUDS: Final = {"gcp": "gke", "google": "gke", "aws": "eks", "amazon": "eks", "oci": "oke", "oracle": "oke"}  # so said
WORDS: Final = (AUTO, *(source.word for source in SOURCES))

# What people call levels, the widest first, where the nodes' labels leave open which of two is wider.
WIDTHS: Final = (
    *("region", "zone", "datacenter", "dc", "building", "hall", "room", "row"),
    *("fabric", "island", "superpod", "spine", "block", "subblock", "leafgroup", "leaf", "rack", "chassis"),
    *("nvlink", "clique", "machine", "host", "hostname", "node"),
)


def is_wider_level(one: str, other: str) -> bool:
    """Whether the name of the label ``one`` says that its domains are wider than those of ``other``."""
    for source in SOURCES:
        keys = [level.key for level in source.levels]
        # A source's own order is sure; words are a guess.
        if one in keys and other in keys:
            return keys.index(one) < keys.index(other)
    ends = [last_word(one), last_word(other)]
    return all(end in WIDTHS for end in ends) and WIDTHS.index(ends[0]) < WIDTHS.index(ends[1])


def last_word(key: str) -> str:
    """The end of a label key: ``rack`` of ``example.com/topology-rack``."""
    return re.split(r"[/._-]", key)[-1].lower()


# By which labels the nodes of a flavor are distinguished from others, the first that fits.
GROUPS: Final = (
    "cloud-provider.com/node-group",
    "cloud.google.com/gke-accelerator",
    "backend.coreweave.cloud/flavor",
    "nvidia.com/gpu.present",
    "amd.com/gpu.present",
    "node.kubernetes.io/instance-type",
    "nvidia.com/gpu.product",
)
EVERYWHERE: Final = ("kubernetes.io/os", "kubernetes.io/arch")
