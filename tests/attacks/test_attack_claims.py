"""Claims to devices: what a tenant writes into ResourceClaims and templates costs nobody else a device or quota.

What the siege looks at counts amounts, so devices are looked at here (``WHOLE``, `support.claims_siege`).
"""

import copy
from contextlib import suppress

import pytest
import pytest_asyncio
from support.accounts import metadata, refused
from support.claims_siege import (
    GPU_CLASS,
    NOT_COUNTED,
    QUOTA,
    SETTINGS,
    asks,
    equipped_siege,
    exactly,
    of_claim,
    of_template,
    where,
)
from support.jobs import KEYS, until
from support.siege import ANYWHERE

from kube.errors import ApiError, Invalid
from kube.patches import PatchType
from kube.resources import (
    CLAIM_TEMPLATES,
    DEVICE_CLASSES,
    JOBS,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    WORKLOADS,
)

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]

__all__ = ["SETTINGS"]  # what the controller is set to (conftest)
WHOLE = False
MOST = 2**63 - 1
FOREIGN = "example.com/later"  # a gate of the tenant's own


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def equipped(siege):
    async with equipped_siege(siege) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def claims(equipped, siege):
    yield equipped
    await siege.answers()
    await equipped.others_run()
    await equipped.clean()


# --- values ----------------------------------------------------------------------------------------------------------

NESTED = "(" * 60 + "true" + ")" * 60
DEEP = " && ".join(["device.attributes['gpu.nvidia.com'].type.matches('(a+)+$')"] * 20)
# What the API server stores of claims, and that it is told of, each in a template of its own.
SPECS = {
    "most": asks(exactly(count=MOST)),
    "all": asks(exactly(allocationMode="All")),
    "thousand": asks(exactly(count=1000)),
    "many": asks(*(exactly(f"r{at}") for at in range(32))),
    "missing": asks(exactly(selectors=[{"cel": {"expression": "device.attributes['gpu.nvidia.com'].none == 'x'"}}])),
    "no-class": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "no.such.class"}}]}},
    "nested": where(f"{NESTED} && false"),
    "regex": where(f"{DEEP} && false"),
    "not-evaluated": where("string(type(device.driver)) == 'x'"),
    "capacity": asks(exactly(capacity={"requests": {"gpu.nvidia.com/memory": "9223372036854775807"}})),
    "no-capacity": asks(exactly(capacity={"requests": {"example.com/none": "1E18"}})),
    "constraint": asks(
        *(exactly(f"r{at}") for at in range(8)), constraints=[{"distinctAttribute": "gpu.nvidia.com/none"}]
    ),
    "backtracking": asks(
        *(
            {
                "name": f"r{at}",
                "firstAvailable": [
                    {"name": f"a{way}", "deviceClassName": GPU_CLASS, "count": way % 2 + 1} for way in range(8)
                ],
            }
            for at in range(16)
        ),
        constraints=[{"matchAttribute": "gpu.nvidia.com/uuid"}],
    ),
    "tolerations": asks(
        exactly(count=5, tolerations=[{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": -MOST}])
    ),
    "opaque": asks(
        exactly(count=5),
        config=[
            {"opaque": {"driver": "gpu.nvidia.com", "parameters": {"deep": "x" * 9000, "at": at}}} for at in range(4)
        ],
    ),
}


async def test_whatever_claims_ask_for_is_one_workloads_reason(claims, siege):
    """All at once, queued and not, and all of it again after a restart."""
    stored = []
    for name, spec in SPECS.items():
        with suppress(Invalid):  # beyond the API server's own limits
            await claims.template(name, copy.deepcopy(spec))
            stored.append(name)
    for name in stored:
        if name != "all":  # without a queue it is had, as a node has so many
            await claims.plain(f"evil-{name}", 2, of_template(name))
        await claims.queued(f"paid-{name}", 2, of_template(name))
    assert len(stored) >= len(SPECS) - 3, stored

    async def told():
        for name in stored:
            for whose in ("evil", "paid") if name != "all" else ("paid",):
                found = {reason for reason, _ in await siege.told(f"{whose}-{name}")}
                if not found & {NOT_COUNTED, "DoesNotFit", "NeverFits", "NoQuota", "InsufficientQuota", "ExceedsQuota"}:
                    return False
        return True

    await until(told, "each to be told why it waits", seconds=60)
    assert await claims.given() == 0
    await siege.restart()
    await until(told, "each to be told why it waits", seconds=60)
    assert await claims.given() == 0


async def test_claims_without_end_in_one_pod(claims, siege):
    """A pod may list claims as many as it likes; each is made of a template that asks for 32."""
    await claims.template("many", SPECS["many"])
    names = [{"name": f"c{at}", "resourceClaimTemplateName": "many"} for at in range(64)]
    await claims.plain("evil", 4, {"resourceClaims": names})
    await siege.reason("evil", NOT_COUNTED)


async def test_templates_that_come_and_go_over_and_over(claims, siege):
    """Each change wakes whoever has claims of it."""
    await claims.plain("evil", 4, of_template("late"))
    await siege.reason("evil", NOT_COUNTED)
    for _ in range(60):
        await claims.template("late", asks(exactly(count=MOST)))
        await claims.tenant.delete(CLAIM_TEMPLATES, "late", claims.namespace)
    await siege.reason("evil", NOT_COUNTED)


# --- rights ----------------------------------------------------------------------------------------------------------


async def test_what_a_claim_has_is_not_the_tenants_to_say(claims, siege):
    """Nor that of devices, classes and slices; a claim for administrators is refused in a namespace of tenants."""
    await claims.claim("mine", asks())
    device = {"driver": "gpu.nvidia.com", "pool": f"{siege.name}-b1-r1-h1", "device": "gpu-0", "request": "gpu"}
    body = {"status": {"allocation": {"devices": {"results": [device]}}}}
    await refused(
        claims.tenant.patch(RESOURCE_CLAIMS, "mine", claims.namespace, body=body, subresource="status"), "status"
    )
    body = {"metadata": {"name": "mine"}, "spec": {"extendedResourceName": "nvidia.com/gpu"}}
    await refused(claims.tenant.create(DEVICE_CLASSES, body), "deviceclasses")
    await refused(claims.tenant.delete(RESOURCE_SLICES, f"{siege.name}-b1-r1-h1-gpu"), "resourceslices")
    with pytest.raises(ApiError) as error:
        await claims.claim("admin", asks(exactly(adminAccess=True)))
    assert error.value.status in {403, 422}, error.value


# --- quota -----------------------------------------------------------------------------------------------------------


async def test_more_devices_than_quota(claims):
    for at in range(4):
        await claims.queued(f"evil-{at}", 4)
    await claims.paid(QUOTA)


async def test_named_claims_are_not_had_for_nothing(claims, siege):
    """Quota cannot count them, so a queue admits no job with them, whoever made them."""
    await claims.claim("own", asks(exactly(count=4)))
    await claims.queued("evil", 1, of_claim("own"))
    await siege.reason("evil", NOT_COUNTED)
    assert await claims.given() == 0


async def test_the_template_is_larger_once_the_job_is_admitted(claims, siege):
    await claims.template("mine", asks())
    await claims.queued("evil", 2, of_template("mine"))
    await claims.paid(2)
    await claims.tenant.delete(CLAIM_TEMPLATES, "mine", claims.namespace)
    await claims.template("mine", asks(exactly(count=4)))
    for pod in await claims.pods("evil"):
        await claims.tenant.delete(PODS, pod["metadata"]["name"], claims.namespace, grace_period=0)
    await claims.paid()
    assert await claims.given() <= 2


async def test_the_template_is_larger_while_the_job_is_admitted_and_the_controller_away(claims, siege):
    await claims.template("mine", asks())
    await claims.queued("evil", 2, of_template("mine"))
    await claims.paid(2)
    await siege.controller.crash()
    await claims.tenant.delete(CLAIM_TEMPLATES, "mine", claims.namespace)
    await claims.template("mine", asks(exactly(count=4)))
    for pod in await claims.pods("evil"):
        await claims.tenant.delete(PODS, pod["metadata"]["name"], claims.namespace, grace_period=0)
    await siege.controller.start()
    await claims.paid()
    assert await claims.given() <= 2


async def swap(claims, pod, devices):
    """The claim that was made for a pod is to go, and one of its name to come that asks for more: the tenant's own.

    Or one that Kubernetes makes of a template which asks for more by now.
    """
    (made,) = pod["status"]["resourceClaimStatuses"]
    name, meta = made["resourceClaimName"], pod["metadata"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"], "controller": True}
    note = {"resource.kubernetes.io/pod-claim-name": "gpu"}
    await refused(claims.tenant.delete(RESOURCE_CLAIMS, name, claims.namespace), "delete the pod")
    spec = asks(exactly(count=devices))
    for own in (name, f"{name}-more"):
        await refused(claims.claim(own, spec, ownerReferences=[owner], annotations=note), "made by Kubernetes alone")
    await claims.claim(f"{name}-mine", spec, annotations=note)
    await refused(
        claims.tenant.patch(RESOURCE_CLAIMS, f"{name}-mine", claims.namespace, **metadata(ownerReferences=[owner])),
        "made by Kubernetes alone",
    )


def has_claim(pod):
    return bool(pod["status"].get("resourceClaimStatuses"))


async def test_a_claim_of_the_tenants_own_stands_for_the_one_that_was_made(claims):
    """While its pod waits behind its gate: it is compared with what was admitted."""
    await claims.queued("fills", QUOTA)
    await claims.paid(QUOTA)
    body = {"schedulingGates": [{"name": KEYS.gate}], **of_template("one")}
    group = {KEYS.pod_group: "evil", KEYS.queue_name: "devices"}
    notes = {**ANYWHERE, KEYS.pod_group_total: "1"}
    limits = {"resources": {"limits": {"cpu": "1"}}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "evil-0", "labels": group, "annotations": notes},
        "spec": {**body, "containers": [{"name": "c", "image": "i", **limits}]},
    }
    await claims.siege.create(pod)

    async def made():
        found = await claims.admin.get(PODS, "evil-0", claims.namespace)
        return found if has_claim(found) else None

    await swap(claims, await until(made, "the claim of evil-0"), 4)
    await claims.tenant.delete(JOBS, "fills", claims.namespace, propagation="Background")
    await claims.paid(1)


async def test_claims_are_exchanged_once_our_gate_is_gone_and_before_their_pods_have_nodes(claims):
    """A gate of the tenant's own holds each of its pods meanwhile, of which quota paid one device."""
    gates = [{"name": KEYS.gate}, {"name": FOREIGN}]
    await claims.template("mine", asks())
    await claims.queued("evil", QUOTA, {**of_template("mine"), "schedulingGates": gates})

    async def made():
        found = await claims.pods("evil")
        return found if len(found) == QUOTA and all(map(has_claim, found)) else None

    for pod in await until(made, "the claims of evil"):
        await swap(claims, pod, 4)
    await claims.tenant.delete(CLAIM_TEMPLATES, "mine", claims.namespace)
    await claims.template("mine", asks(exactly(count=4)))
    gone = {"spec": {"schedulingGates": [{"$patch": "delete", "name": FOREIGN}]}}
    for pod in await claims.pods("evil"):
        name = pod["metadata"]["name"]
        await claims.tenant.patch(PODS, name, claims.namespace, body=gone, content_type=PatchType.STRATEGIC)
    await claims.paid(QUOTA)


async def test_a_claim_is_made_that_says_it_is_of_anothers_pod(claims, siege):
    """The uid of an honest pod, in the tenant's namespace."""
    honest = next(iter(await siege.theirs.pods("steady")))["metadata"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": honest["name"], "uid": honest["uid"], "controller": True}
    spec = asks(exactly(count=4))
    await refused(claims.claim("forged", spec, ownerReferences=[owner]), "made by Kubernetes alone")
    await claims.claim("forged", spec, ownerReferences=[{**owner, "controller": False}])
    assert await claims.given() == 0


async def test_a_hundred_claims_that_nobody_uses(claims):
    for at in range(100):
        await claims.claim(f"idle-{at}", asks(exactly(count=4)))
    assert await claims.given() == 0


async def test_a_workload_says_that_it_was_given_devices(claims, siege):
    """Its status is the controller's alone."""
    await claims.queued("evil", 1, of_claim("none"))
    await siege.reason("evil", NOT_COUNTED)
    (workload,) = await siege.admin.list(WORKLOADS, claims.namespace)
    grant = {"clusterQueue": f"{claims.namespace}-devices", "podSetAssignments": []}
    call = claims.tenant.patch(
        WORKLOADS,
        workload["metadata"]["name"],
        claims.namespace,
        body={"status": {"admission": grant}},
        subresource="status",
    )
    await refused(call)
