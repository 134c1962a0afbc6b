"""Jobs of all kinds whose pods ask for devices of resource claims, on machines whose GPUs are partitioned."""

import random
from dataclasses import dataclass
from typing import Any

from support.jobs import GPU

Json = dict[str, Any]

MACHINE = "1 socket / 2 NUMA / 8 cores / 4 GPUs / 4 NICs / 64Gi"
HALF = "device.attributes['gpu.nvidia.com'].profile == '3g.40gb'"
SMALLEST = "nvidia.com/mig-1g.10gb"
SHARED = "shared"


def asks(*requests: tuple[str, str, Json], match: str = "") -> Json:
    """The spec of a claim: requests by name and DeviceClass, and an attribute that all of its devices share."""
    constraints = [{"matchAttribute": f"resource.kubernetes.io/{match}"}] if match else []
    made = [{"name": name, "exactly": {"deviceClassName": of, **more}} for name, of, more in requests]
    return {"devices": {"requests": made, "constraints": constraints}}


TEMPLATES = {
    "whole": asks(("gpu", "gpu.nvidia.com", {})),
    "zone": asks(("gpus", "gpu.nvidia.com", {"count": 2}), match="numaNode"),
    "near": asks(("gpu", "gpu.nvidia.com", {}), ("nic", "dranet", {}), match="pcieRoot"),
    "half": asks(("mig", "mig.nvidia.com", {"selectors": [{"cel": {"expression": HALF}}]})),
    "any-mig": asks(("mig", "mig.nvidia.com", {})),
    "nic": asks(("nic", "dranet", {})),
}
KINDS = (*TEMPLATES, SMALLEST, GPU, SHARED)  # templates, extended resources of classes, and one claim for all pods


@dataclass(frozen=True)
class ClaimJob:
    """One Job: ``pods`` of a ``kind`` that run for so many ``seconds``; ``shared``: what their one claim asks for."""

    name: str
    kind: str
    pods: int
    seconds: int
    request: Json
    shared: Json | None = None

    def body(self, *, topology: bool) -> Json:
        """The Job as a person writes it; without ``topology`` it asks for none."""
        limits = {self.kind: "1", "cpu": "1"} if self.kind in {SMALLEST, GPU} else {"cpu": "1"}
        spec: Json = {"containers": [{"name": "c", "image": "i", "resources": {"limits": limits}}]}
        if self.kind not in {SMALLEST, GPU}:
            name = "resourceClaimName" if self.shared is not None else "resourceClaimTemplateName"
            spec["resourceClaims"] = [{"name": "devices", name: self.name if self.shared is not None else self.kind}]
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": self.name, "annotations": dict(self.request) if topology else {}},
            "spec": {
                "parallelism": self.pods,
                "completions": self.pods,
                "backoffLimit": 1000,
                "template": {
                    "metadata": {"annotations": {"topogate.dev/run-seconds": str(self.seconds)}},
                    "spec": {"restartPolicy": "Never", **spec},
                },
            },
        }


def mixed(count: int, requests: list[Json], *, seed: int, seconds: tuple[int, int]) -> list[ClaimJob]:
    """So many Jobs of one to six pods; each asks for one of these topologies."""
    dice, made = random.Random(seed), []
    for number in range(count):
        kind = dice.choice(KINDS)
        shared = TEMPLATES[dice.choice(list(TEMPLATES))] if kind == SHARED else None
        pods, runs, request = dice.randrange(1, 7), dice.randint(*seconds), dice.choice(requests)
        made.append(ClaimJob(f"job-{number}", kind, pods, runs, request, shared))
    return made
