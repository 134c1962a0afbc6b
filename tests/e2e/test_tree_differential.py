"""Trees of cohorts beside a real Kueue 0.19.2: who is admitted, who is evicted and why, step by step.

`TOPOGATE_TREE_STREAMS=2000 pytest -s tests/e2e/test_tree_differential.py` runs so many random streams, half of them
with fair sharing, a hundred at a time on each of two API servers. Kueue is built from its Go module the first time.
Where ``TOPOGATE_TREE_ANSWERS`` names a file, its answers are kept there, and nothing is asked twice. Those of a long
run are in tests/data; `tests/unit/queueing/test_kueue_answers.py` compares ours with them.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import chain
from pathlib import Path

import pytest
from support.kueue_trees import KueueTrees, digest_of
from support.tree_answers import KeptAnswer, append_answers, read_answers
from support.tree_differences import UNKNOWN, find_difference
from support.tree_streams import Answer, Stream, answers_of_ours, stream

from benchmarks.harness import kueue
from kube.client import Client
from localcluster import LocalCluster
from localcluster.errors import BinariesMissing
from localcluster.programs.binaries import Binaries

STREAMS = int(os.environ.get("TOPOGATE_TREE_STREAMS", "24"))
FIRST = int(os.environ.get("TOPOGATE_TREE_FIRST", "0"))
ANSWERS = os.environ.get("TOPOGATE_TREE_ANSWERS", "")
AT_ONCE = 200
TRIES = 3
# By default Kueue's client sends 50 requests a second, which a hundred trees at once would wait for.
QUICK = {"clientConnection": {"qps": 500, "burst": 1000}}
# A configuration that names no strategy is refused.
FAIR = {"fairSharing": {"preemptionStrategies": ["LessThanOrEqualToFinalShare", "LessThanInitialShare"]}}

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(14_400)]


@pytest.fixture(scope="module")
def real() -> kueue.Kueue:
    try:
        return kueue.Kueue.find(print)
    except BinariesMissing as error:
        pytest.skip(f"Kueue {kueue.VERSION} cannot be built: {str(error)[-200:]}")


def test_trees_are_shared_as_a_real_kueue_shares_them(real: kueue.Kueue) -> None:
    told, again = Counter[str](), list[Stream]()
    numbers = range(FIRST, FIRST + STREAMS // 2)
    for first in range(0, len(numbers), AT_ONCE // 2):
        chosen = numbers[first : first + AT_ONCE // 2]
        streams = [stream(number, fair=fair) for fair in (False, True) for number in chosen]
        for one, answer in zip(streams, _answers(real, streams), strict=True):
            kind = _compared(one, answer)
            if kind == UNKNOWN:
                again.append(one)
            else:
                told[kind] += 1
    # On a loaded machine Kueue may still be at it when it seems to rest.
    for _ in range(TRIES - 1):
        kinds = [_compared(one, answer) for one, answer in zip(again, asyncio.run(_ask(real, again)), strict=True)]
        told += Counter(kind for kind in kinds if kind != UNKNOWN)
        again = [one for one, kind in zip(again, kinds, strict=True) if kind == UNKNOWN]
    print(dict(told))
    assert not [one.name for one in again]


def _compared(one: Stream, answer: Answer) -> str:
    step, kind, sides = find_difference(one, answer, answers_of_ours(one, answer))
    print(f"{one.name}: step {step}: {kind}{sides if kind == UNKNOWN else ''}", flush=True)
    return kind


def _answers(real: kueue.Kueue, streams: Sequence[Stream]) -> list[Answer]:
    kept = read_answers(Path(ANSWERS)) if ANSWERS else {}
    new = [one for one in streams if one.name not in kept or kept[one.name].digest != digest_of(one)]
    answers = asyncio.run(_ask(real, new))
    made = [KeptAnswer.of_answer(one, answer) for one, answer in zip(new, answers, strict=True)]
    if ANSWERS:
        append_answers(Path(ANSWERS), made)
    kept |= {one.name: one for one in made}
    return [kept[one.name].answer_to(one) for one in streams]


async def _ask(real: kueue.Kueue, streams: Sequence[Stream]) -> list[Answer]:
    """In the order of the streams; those with fair sharing, and those without it, on a control plane each."""
    by_kind = [[one for one in streams if one.fair is fair] for fair in (False, True)]
    answers = await asyncio.gather(*(_ask_alike(real, each) for each in by_kind if each))
    found = dict(zip((one.name for each in by_kind for one in each), chain.from_iterable(answers), strict=True))
    return [found[one.name] for one in streams]


async def _ask_alike(real: kueue.Kueue, streams: Sequence[Stream]) -> list[Answer]:
    more = QUICK | (FAIR if streams[0].fair else {})
    async with AsyncExitStack() as stack:
        cluster = LocalCluster(binaries=Binaries.find(progress=print))
        await asyncio.to_thread(cluster.up)
        stack.callback(cluster.stop)
        client = await stack.enter_async_context(await Client.connect(str(cluster.kubeconfig)))
        process = await stack.enter_async_context(kueue.installed(real, cluster, client, more))
        await kueue.start(process, client)
        return await KueueTrees(process, client, streams).run()
