"""Jobs of all kinds whose pods ask for devices of resource claims, on machines that publish them in all forms."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from support.jobs import GPU, KEYS

from kube.client import Client
from kube.resources import CLAIM_TEMPLATES
from localcluster.dra.devices import TAINT
from localcluster.dra.driver import parse_driver
from localcluster.dra.publish import publish

Json = dict[str, Any]

MACHINE = "1 socket / 2 NUMA / 8 cores / 4 GPUs / 4 NICs / 64Gi"
FORMS = ("partitions", "partitions, tainted", "shared, tainted", "gpus")  # of one machine after another
GPUS, MIG, NICS = "gpu.nvidia.com", "mig.nvidia.com", "dranet"
SMALLEST = "nvidia.com/mig-1g.10gb"
SHARED, JOINED = "shared", "joined"  # one claim for all pods of a Job; of another Job too


def where(expression: str) -> Json:
    return {"selectors": [{"cel": {"expression": expression}}]}


def profile(name: str) -> Json:
    return where(f"device.attributes['gpu.nvidia.com'].profile == '{name}'")


def part_of(name: str, amount: str) -> Json:
    return {"capacity": {"requests": {name: amount}}}


def asks(*requests: tuple[str, str, Json], match: str = "", distinct: str = "") -> Json:
    """The spec of a claim: requests by name and DeviceClass, and an attribute that is the same, or not, in all."""
    return _spec(
        [{"name": name, "exactly": {"deviceClassName": of, **more}} for name, of, more in requests], match, distinct
    )


def first_of(
    *alternatives: tuple[str, str, Json], beside: Sequence[tuple[str, str, Json]] = (), match: str = ""
) -> Json:
    """The spec of a claim whose first request has alternatives."""
    first = [{"name": name, "deviceClassName": of, **more} for name, of, more in alternatives]
    others = [{"name": name, "exactly": {"deviceClassName": of, **more}} for name, of, more in beside]
    return _spec([{"name": "first", "firstAvailable": first}, *others], match)


def _spec(requests: list[Json], match: str = "", distinct: str = "") -> Json:
    constraints = [{"matchAttribute": f"resource.kubernetes.io/{match}"}] if match else []
    constraints += [{"distinctAttribute": f"resource.kubernetes.io/{distinct}"}] if distinct else []
    return {"devices": {"requests": requests, "constraints": constraints}}


TEMPLATES = {
    "whole": asks(("gpu", GPUS, {})),
    "zone": asks(("gpus", GPUS, {"count": 2}), match="numaNode"),
    "apart": asks(("gpus", GPUS, {"count": 2}), distinct="numaNode"),
    "near": asks(("gpu", GPUS, {}), ("nic", NICS, {}), match="pcieRoot"),
    "half": asks(("mig", MIG, profile("3g.40gb"))),
    "any-mig": asks(("mig", MIG, {})),
    "nic": asks(("nic", NICS, {})),
    "all-nics": asks(("nics", NICS, {"allocationMode": "All", **where("device.attributes['dra.net'].numaNode == 0")})),
    "tolerant": asks(("gpu", GPUS, {"tolerations": [{"key": TAINT["key"], "operator": "Exists"}]})),
    "memory": asks(("gpu", GPUS, part_of("memory", "20Gi"))),
    "bandwidth": asks(("nic", NICS, part_of("dra.net/bandwidth", "100G"))),
    "choice": first_of(
        ("full", MIG, profile("7g.80gb")), ("two", GPUS, {"count": 2}), ("part", GPUS, part_of("memory", "40Gi"))
    ),
    "choice-near": first_of(
        ("half", MIG, profile("3g.40gb")), ("gpu", GPUS, {}), beside=[("nic", NICS, {})], match="pcieRoot"
    ),
}
# What pods ask for: templates and extended resources, in one pod. A rack of four machines has room for six of each.
POD_KINDS: dict[str, tuple[str, ...]] = {
    **{name: (name,) for name in TEMPLATES},
    SMALLEST: (SMALLEST,),
    GPU: (GPU,),
    "two-claims": ("memory", "nic"),
    "both-ways": (SMALLEST, "nic"),
}
MOST_PODS = {"all-nics": 4}


@dataclass(frozen=True)
class ClaimJob:
    """One Job: ``pods`` of a ``kind`` that run for so many ``seconds``.

    ``claim``: the claim that all of its pods name, if they do; ``shared``: what it asks for, if it is to be made.
    """

    name: str
    kind: str
    pods: int
    seconds: int
    request: Json
    claim: str = ""
    shared: Json | None = None

    def body(self, *, topology: bool) -> Json:
        """The Job as a person writes it; without ``topology`` it asks for none."""
        wanted = POD_KINDS.get(self.kind, ())
        limits = {"cpu": "1", **{one: "1" for one in wanted if one not in TEMPLATES}}
        claims = [{"name": one, "resourceClaimTemplateName": one} for one in wanted if one in TEMPLATES]
        if self.claim:
            claims = [{"name": "devices", "resourceClaimName": self.claim}]
        spec: Json = {"containers": [{"name": "c", "image": "i", "resources": {"limits": limits}}]}
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
                    "spec": {"restartPolicy": "Never", **spec, **({"resourceClaims": claims} if claims else {})},
                },
            },
        }


def stamped(body: Json) -> Json:
    """A Job with a request as the webhook stamps it, where there is none."""
    template = body["spec"]["template"]
    meta, spec = template["metadata"], template["spec"]
    annotations = {**meta["annotations"], **body["metadata"]["annotations"], KEYS.pod_set: "main"}
    gated = {"metadata": {**meta, "annotations": annotations}}
    gated["spec"] = {**spec, "schedulingGates": [{"name": KEYS.gate}]}
    return {**body, "spec": {**body["spec"], "template": gated}}


def mixed(
    count: int, requests: Sequence[Json], *, seed: int, seconds: tuple[int, int], without: Sequence[str] = ()
) -> list[ClaimJob]:
    """So many Jobs of one to six pods; each asks for one of these topologies, none is of the kinds ``without``."""
    dice, made, last = random.Random(seed), list[ClaimJob](), ""
    kinds = [kind for kind in (*POD_KINDS, SHARED, JOINED) if kind not in without]
    for number in range(count):
        kind, name, claim, shared = dice.choice(kinds), f"job-{number}", "", None
        if kind == JOINED and last:
            claim = last
        elif kind in {SHARED, JOINED}:
            claim = last = name
            shared = TEMPLATES[dice.choice(list(TEMPLATES))]
        pods = min(dice.randrange(1, 7), MOST_PODS.get(kind, 6))
        made.append(ClaimJob(name, kind, pods, dice.randint(*seconds), dice.choice(requests), claim, shared))
    return made


async def equip(client: Client, nodes: Sequence[str], namespace: str) -> None:
    """Publish the devices of these nodes, in one form after another, and make the templates."""
    for at, form in enumerate(FORMS):
        await publish(client, nodes[at :: len(FORMS)], MACHINE, parse_driver(form))
    for name, spec in TEMPLATES.items():
        await client.create(CLAIM_TEMPLATES, {"metadata": {"name": name}, "spec": {"spec": spec}}, namespace)
