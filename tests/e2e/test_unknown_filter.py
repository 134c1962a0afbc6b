"""A filter of kube-scheduler that Topogate does not know costs seconds, and not GPUs.

An HTTP extender refuses a third of the nodes to a third of the kinds of pods, and changes its mind. All Jobs complete,
and no pod stays where it is refused.

``TOPOGATE_UNKNOWN_FILTER=1000 pytest -s -p no:xdist tests/e2e/test_unknown_filter.py`` makes so many Jobs, and beside
that run the same with a filter that the pods know of by their node affinity: each prints one line.
"""

import asyncio
import os
import random
from functools import partial

import pytest
from support.chaos import ALONE
from support.extender import KIND, Extender, extender
from support.house import REQUIRED, house, user_job
from support.stream import FLEET, Seen, live_through, watching

from localcluster import Options

COUNT = int(os.environ.get("TOPOGATE_UNKNOWN_FILTER", "0"))
KINDS = 9
CHANGES = 30.0  # seconds after which it changes its mind

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(600 + 4 * COUNT),
    pytest.mark.skipif(not COUNT, reason="TOPOGATE_UNKNOWN_FILTER is not set"),
]


def made(number: int, filters: Extender, *, known: bool):
    """One Job of a kind; where the filter is known, its pods keep off the nodes that are refused to it."""
    dice = random.Random(f"job {number}")
    kind, pods = f"k{dice.randrange(KINDS)}", dice.choice((1, 2, 2, 4))
    gpus = dice.choice((4, 8)) if pods < 4 else 4  # half a rack at most: no rack has all nodes of one that refuses some
    spec = {}
    if known and (out := filters.refused_nodes(kind, FLEET.node_names())):
        wish = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": out}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [wish]}]}
        spec = {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}
    body = user_job(f"job-{number}", pods, REQUIRED, gpus=gpus, pod_spec=spec)
    meta = {"labels": {KIND: kind}, "annotations": {"topogate.dev/run-seconds": str(dice.randint(5, 15))}}
    body["spec"]["template"]["metadata"] = meta
    body["spec"]["backoffLimit"] = 0  # nothing that is done about a pod counts as a failure
    return body


async def change(filters: Extender) -> None:
    while True:
        await asyncio.sleep(CHANGES)
        filters.change_mind()


@pytest.mark.parametrize("variant", ["unknown", "known"])
async def test_an_unknown_filter_costs_seconds_and_not_gpus(variant):
    known, seen = variant == "known", Seen()
    async with (
        extender(seed=36) as filters,
        house(FLEET, options=Options(scheduler_extenders=[filters.url]), env=ALONE) as here,
        watching(here, seen),
    ):
        # One that is known says beforehand what it refuses.
        changing = None if known else asyncio.create_task(change(filters))
        try:
            await live_through(here, (partial(made, at, filters, known=known) for at in range(COUNT)), seen)
        finally:
            if changing is not None:
                changing.cancel()
        print(
            f"{variant}: {len(seen.complete)} of {COUNT} Jobs complete; {seen.told()}; "
            f"{filters.refused} times the filter left a pod no node",
            flush=True,
        )
        assert len(seen.complete) == COUNT
        assert (seen.refused_at, seen.apart) == ({}, set())
        assert known or filters.refused, "nothing was refused, so nothing was shown"
