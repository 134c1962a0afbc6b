"""The same Jobs as users of Kueue write them, on the same nodes under two schedulers: in which domains their pods land.

24 nodes of 8 GPUs: two blocks of three racks of four. Each Job has the nodes for itself.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from clock import SYSTEM
from crds.constants import Keys
from kube.client import Client
from kube.errors import KubeError, NotFound
from kube.resources import JOBS, PODS
from localcluster.nodes import BLOCK_LABEL, HOSTNAME_LABEL, RACK_LABEL, Fleet

FLEET: Final = Fleet(blocks=2, racks=3, hosts=4)
PATIENCE_SECONDS = 30.0  # after which one whose pods have no nodes counts as one that waits
BLOCK, RACK, HOST = BLOCK_LABEL, RACK_LABEL, HOSTNAME_LABEL
REQUIRED, PREFERRED, UNCONSTRAINED, SLICE, SIZE = (
    f"kueue.x-k8s.io/podset-{name}"
    for name in (
        "required-topology",
        "preferred-topology",
        "unconstrained-topology",
        "slice-required-topology",
        "slice-size",
    )
)
UNKNOWN = "example.com/row"
Body = dict[str, Any]


class SameJob(NamedTuple):
    """So many pods of so many GPUs, with annotations of the pod template."""

    name: str
    pods: int
    gpus: int
    asks: Mapping[str, str]

    def body(self) -> Body:
        """The Job as it is sent."""
        container = {"name": "c", "image": "none", "resources": {"limits": {"nvidia.com/gpu": str(self.gpus)}}}
        template = {
            "metadata": {"annotations": dict(self.asks)},
            "spec": {"restartPolicy": "Never", "containers": [container]},
        }
        spec = {"parallelism": self.pods, "completions": self.pods, "completionMode": "Indexed", "template": template}
        labels = {Keys().queue_name: "queue-0"}
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": self.name, "labels": labels},
            "spec": {**spec, "suspend": True},
        }


def _jobs() -> dict[str, SameJob]:
    every = (
        ("a-rack-of-four", 4, 8, {REQUIRED: RACK}),
        ("three-in-a-rack", 3, 8, {REQUIRED: RACK}),
        ("two-halves-in-a-rack", 2, 4, {REQUIRED: RACK}),
        ("eight-halves-in-a-rack", 8, 4, {REQUIRED: RACK}),
        ("five-in-a-rack", 5, 8, {REQUIRED: RACK}),
        ("a-block", 12, 8, {REQUIRED: BLOCK}),
        ("five-in-a-block", 5, 8, {REQUIRED: BLOCK}),
        ("seven-of-six-in-a-block", 7, 6, {REQUIRED: BLOCK}),
        ("thirteen-in-a-block", 13, 8, {REQUIRED: BLOCK}),
        ("two-halves-on-a-host", 2, 4, {REQUIRED: HOST}),
        ("one-on-a-host", 1, 8, {REQUIRED: HOST}),
        ("three-halves-on-a-host", 3, 4, {REQUIRED: HOST}),
        ("four-rather-in-a-rack", 4, 8, {PREFERRED: RACK}),
        ("five-rather-in-a-rack", 5, 8, {PREFERRED: RACK}),
        ("nine-quarters-rather-in-a-rack", 9, 2, {PREFERRED: RACK}),
        ("thirteen-rather-in-a-block", 13, 8, {PREFERRED: BLOCK}),
        ("all-rather-in-a-block", 24, 8, {PREFERRED: BLOCK}),
        ("too-many-rather-in-a-block", 25, 8, {PREFERRED: BLOCK}),
        ("three-halves-rather-on-a-host", 3, 4, {PREFERRED: HOST}),
        ("two-rather-on-a-host", 2, 1, {PREFERRED: HOST}),
        ("six-anywhere", 6, 8, {UNCONSTRAINED: "true"}),
        ("many-small-anywhere", 25, 1, {UNCONSTRAINED: "true"}),
        ("three-of-five-anywhere", 3, 5, {UNCONSTRAINED: "true"}),
        ("racks-of-four-in-a-block", 8, 8, {REQUIRED: BLOCK, SLICE: RACK, SIZE: "4"}),
        ("racks-of-four-rather-in-a-block", 24, 8, {PREFERRED: BLOCK, SLICE: RACK, SIZE: "4"}),
        ("pairs-on-hosts-in-a-rack", 8, 4, {REQUIRED: RACK, SLICE: HOST, SIZE: "2"}),
        ("pairs-in-racks-in-a-block", 6, 8, {REQUIRED: BLOCK, SLICE: RACK, SIZE: "2"}),
        ("threes-in-racks-in-a-block", 9, 8, {REQUIRED: BLOCK, SLICE: RACK, SIZE: "3"}),
        ("fives-in-racks-in-a-block", 10, 8, {REQUIRED: BLOCK, SLICE: RACK, SIZE: "5"}),
        ("eights-on-hosts-rather-in-a-rack", 16, 1, {PREFERRED: RACK, SLICE: HOST, SIZE: "8"}),
        ("racks-of-four-anywhere", 8, 8, {SLICE: RACK, SIZE: "4"}),
        ("fours-and-two-in-a-block", 10, 8, {REQUIRED: BLOCK, SLICE: RACK, SIZE: "4"}),
        ("slices-above-the-level", 4, 8, {REQUIRED: RACK, SLICE: BLOCK, SIZE: "4"}),
        ("an-unknown-level", 4, 8, {REQUIRED: UNKNOWN}),
        ("rather-an-unknown-level", 4, 8, {PREFERRED: UNKNOWN}),
        ("slices-of-an-unknown-level", 4, 8, {REQUIRED: BLOCK, SLICE: UNKNOWN, SIZE: "2"}),
        ("slices-without-a-size", 4, 8, {REQUIRED: BLOCK, SLICE: RACK}),
        ("required-and-preferred", 4, 8, {REQUIRED: RACK, PREFERRED: RACK}),
    )
    return {job[0]: SameJob(*job) for job in every}


SAME_JOBS: Final = _jobs()


async def outcome_of(client: Client, job: SameJob) -> str:
    """Where a Job's pods land, as counts on hosts by rack and block; why it is refused; or that it waits.

    It is gone afterwards.
    """
    try:
        await client.create(JOBS, job.body(), "default")
    except KubeError as error:
        return f"refused: {error}"
    deadline = SYSTEM.monotonic() + PATIENCE_SECONDS
    pods: list[Body] = []
    while SYSTEM.monotonic() < deadline:
        pods = await client.list(PODS, "default")
        if sum(bool(pod["spec"].get("nodeName")) for pod in pods) == job.pods:
            break
        await asyncio.sleep(0.3)
    landed = Counter(pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName"))
    await _remove(client, job.name)
    if sum(landed.values()) == job.pods:
        return _shape(landed)
    return f"waits, {sum(landed.values())} of {job.pods} pods run" if landed else "waits"


async def _remove(client: Client, name: str) -> None:
    await client.delete(JOBS, name, "default", propagation="Foreground")
    while True:
        try:
            await client.get(JOBS, name, "default")
        except NotFound:
            return
        await asyncio.sleep(0.2)


def _shape(landed: Mapping[str, int]) -> str:
    """The same for two placements that differ by the names of domains alone."""
    blocks: dict[str, dict[str, list[int]]] = {}
    for node, count in landed.items():
        block, rack, _ = node.split("-")
        blocks.setdefault(block, {}).setdefault(rack, []).append(count)
    racks = (sorted((sorted(hosts, reverse=True) for hosts in each.values()), reverse=True) for each in blocks.values())
    return " | ".join(" / ".join(" ".join(map(str, hosts)) for hosts in each) for each in sorted(racks, reverse=True))
