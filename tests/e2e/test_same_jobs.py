"""The same 38 Jobs under Topogate and under a real Kueue 0.19.2: where their pods land, or that they are refused.

Made only when asked for, as it takes some minutes: ``TOPOGATE_SAME_JOBS=1 pytest -s tests/e2e/test_same_jobs.py``.
"""

import os
from collections.abc import Mapping
from typing import Final

import pytest
from support.same_jobs import FLEET, SAME_JOBS, outcome_of

from benchmarks.harness import kueue
from benchmarks.harness.plane import Plane, plane
from crds.constants import API_VERSION
from kube.resources import CLUSTER_QUEUES, LOCAL_QUEUES
from localcluster.errors import BinariesMissing

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(3_600),
    pytest.mark.skipif(not os.environ.get("TOPOGATE_SAME_JOBS"), reason="TOPOGATE_SAME_JOBS is not set"),
]


async def test_the_same_jobs_land_as_under_a_real_kueue() -> None:
    try:
        real = kueue.Kueue.find(print)
    except BinariesMissing as error:
        pytest.skip(f"Kueue {kueue.VERSION} cannot be built: {str(error)[-200:]}")
    async with plane(FLEET, topogate=True) as made:
        await _queue(made)
        ours = await _outcomes(made)
    async with plane(FLEET, topogate=False, beside=real) as made:
        theirs = await _outcomes(made)
    found = {name: (ours[name], theirs[name]) for name in SAME_JOBS}
    for name, (mine, other) in found.items():
        print(f"{name}: {mine}" if mine == other else f"{name}: ours {mine}; Kueue {other}", flush=True)
    kinds = {name: _kind(*pair) for name, pair in found.items()}
    print({kind: list(kinds.values()).count(kind) for kind in sorted(set(kinds.values()))})
    assert {name for name, kind in kinds.items() if kind == "differ"} == set(DIFFER)


def _kind(mine: str, other: str) -> str:
    if mine == other and not mine.startswith(("refused", "waits")):
        return "alike"
    placed = [not one.startswith(("refused", "waits")) for one in (mine, other)]
    return "differ" if any(placed) else "refused by both"


async def _outcomes(made: Plane) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, job in SAME_JOBS.items():
        found[name] = await outcome_of(made.client, job)
        print(f"{name}: {found[name]}", flush=True)
    return found


async def _queue(made: Plane) -> None:
    """The queue that Kueue has too: it owns all nodes."""
    meta = {"apiVersion": API_VERSION, "metadata": {"name": "queue-0"}}
    spec = {"namespaceSelector": {}, "resourceGroups": [kueue.quota(len(FLEET))]}
    await made.client.create(CLUSTER_QUEUES, {**meta, "kind": "ClusterQueue", "spec": spec})
    local = {**meta, "kind": "LocalQueue", "spec": {"clusterQueue": "queue-0"}}
    await made.client.create(LOCAL_QUEUES, local, "default")


# What Kueue does with it; docs/using-queues.md says it too.
DIFFER: Final[Mapping[str, str]] = {
    "fours-and-two-in-a-block": "admitted, and the last two pods stay gated (issue 15277)"
}
