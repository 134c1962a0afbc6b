"""A webhook of somebody else that changes pods as they are made costs seconds, and not GPUs, and nobody's quota.

It adds containers, sidecars, amounts, RuntimeClasses with overhead, and whatever else decides a pod's place, to a third
of the kinds of pods, and changes its mind amid gangs (`support.pod_changer`). Half of the Jobs are in a queue. All are
complete, no pod stays where it is refused, and what runs of the queue, as it was made, is within its quota at every
moment.

``TOPOGATE_CHANGING_WEBHOOK=100 pytest -s -p no:xdist tests/e2e/test_changing_webhook.py`` makes so many Jobs, and
beside that run the same without the webhook: each prints one line.
"""

import contextlib
import os
import random
from collections import Counter
from functools import partial

import pytest
from support.chaos import ALONE
from support.cluster_checker import number
from support.extender import KIND
from support.house import NAMESPACE, REQUIRED, house, user_job
from support.jobs import GPU, KEYS
from support.pod_changer import PodChanger, serving
from support.queues import API
from support.stream import FLEET, Paid, Seen, live_through, watching

from kube.resources import CLUSTER_QUEUES, LOCAL_QUEUES

COUNT = int(os.environ.get("TOPOGATE_CHANGING_WEBHOOK", "0"))
KINDS = 9
QUEUE = "team"
QUOTA = {GPU: 96, "cpu": 260, "memory": 1 << 40}
# Whoever is put back for pods that differ is not away for longer than a run may stand still.
ENV = {**ALONE, "TOPOGATE_REQUEUING_BACKOFF_BASE_SECONDS": "10"}
QUEUED = "example.com/queued"  # the label of pods whose Job is in the queue

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(600 + 4 * COUNT),
    pytest.mark.skipif(not COUNT, reason="TOPOGATE_CHANGING_WEBHOOK is not set"),
]


def made(at: int):
    """One Job of a kind; every other one is in the queue."""
    dice = random.Random(f"job {at}")
    kind, pods = f"k{dice.randrange(KINDS)}", dice.choice((1, 2, 2, 4))
    body = user_job(f"job-{at}", pods, REQUIRED, gpus=dice.choice((4, 8)) if pods < 4 else 4)
    labels = {KIND: kind}
    if dice.random() < 1 / 2:
        labels[QUEUED] = "true"
        body["metadata"]["labels"] = {KEYS.queue_name: QUEUE}
    meta = {"labels": labels, "annotations": {"topogate.dev/run-seconds": str(dice.randint(5, 15))}}
    body["spec"]["template"]["metadata"] = meta
    body["spec"]["backoffLimit"] = 0  # nothing that is done about a pod counts as a failure
    return body


async def make_queue(client):
    quotas = [{"name": name, "nominalQuota": str(amount)} for name, amount in QUOTA.items()]
    group = {"coveredResources": list(QUOTA), "flavors": [{"name": "tas", "resources": quotas}]}
    spec = {"resourceGroups": [group], "namespaceSelector": {}}
    body = {"apiVersion": API, "kind": "ClusterQueue", "metadata": {"name": QUEUE}, "spec": spec}
    await client.create(CLUSTER_QUEUES, body)
    local = {"apiVersion": API, "kind": "LocalQueue", "metadata": {"name": QUEUE}, "spec": {"clusterQueue": QUEUE}}
    await client.create(LOCAL_QUEUES, local, NAMESPACE)


def takes(pod) -> Counter:
    """What a pod takes, by itself: its containers, its sidecars and its overhead."""
    sidecars = (one for one in pod.spec.init_containers or () if one.restart_policy == "Always")
    total = Counter({name: number(amount) for name, amount in (pod.spec.overhead or {}).items()})
    for one in (*pod.spec.containers, *sidecars):
        for name, amount in ((one.resources and one.resources.requests) or {}).items():
            total[name] += number(amount)
    return total


@pytest.mark.parametrize("variant", ["changed", "as written"])
async def test_a_webhook_that_changes_pods_costs_seconds_and_neither_gpus_nor_quota(variant):
    seen = Seen()
    paid = Paid(QUOTA, lambda pod: QUEUED in pod.metadata.labels, takes)
    seen.looks.append(paid.look)
    async with contextlib.AsyncExitStack() as stack:
        here = await stack.enter_async_context(house(FLEET, env=ENV))
        await make_queue(here.client)
        changer = PodChanger(seed=36)
        if variant == "changed":
            await stack.enter_async_context(serving(here.client, changer))
        await stack.enter_async_context(watching(here, seen))
        await live_through(here, (partial(made, at) for at in range(COUNT)), seen)
        most = ", ".join(f"{100 * paid.most[name] / quota:.0f}% of its {name}" for name, quota in QUOTA.items())
        ways = ", ".join(f"{many} {way}" for way, many in changer.changed.most_common())
        print(
            f"{variant}: {len(seen.complete)} of {COUNT} Jobs complete; {seen.told()}; the queue used at most "
            f"{most}; {changer.changed.total()} pods were changed ({ways}), not all alike in {changer.unlike} Jobs",
            flush=True,
        )
        assert len(seen.complete) == COUNT
        assert (seen.refused_at, seen.apart) == ({}, set())
        assert paid.wrong == []
        assert variant != "changed" or changer.unlike, "nothing was changed, so nothing was shown"
