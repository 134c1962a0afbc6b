"""What no client should send, sent to ``topogate webhook`` over TLS: an answer, no 5xx, and nothing left behind.

TOPOGATE_FUZZ_COUNT=100000 is the full number; TOPOGATE_FUZZ_SEED and TOPOGATE_FUZZ_FIRST choose others. What fails says
which number it was.
"""

import asyncio
import collections
import json
import os
import time
from contextlib import suppress
from itertools import pairwise

import pytest
from support import fuzz
from support.webhook_process import HOST, Connection, apply_kinds, running, trust_of

from kube.errors import NotFound
from kube.resources import RESOURCE_FLAVORS
from webhook.server import REVIEWERS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600)]

COUNT = int(os.environ.get("TOPOGATE_FUZZ_COUNT", "3000"))
SEED = os.environ.get("TOPOGATE_FUZZ_SEED", "1")
FIRST = int(os.environ.get("TOPOGATE_FUZZ_FIRST", "0"))
WORKERS = 12
WAIT_SECONDS = 20  # a body that does not come is given up after 10
WARM_UP = min(COUNT // 2, 5000)
PARTS = 10  # of the rest, after each of which memory is read
MORE_BYTES = 24 << 20  # what a warm process may still take: 1,024 kept decisions a path, of 10 kB at the very most


async def exchange(connection, request):
    """The answers to one request. Raises AssertionError where they are not what they must be."""
    async with asyncio.timeout(WAIT_SECONDS):
        await connection.send(*request.pieces)
        if not request.answers:
            return []
        answers = []
        head = request.pieces[0].startswith(b"HEAD ")
        while len(answers) < request.answers:
            answer = await connection.receive(with_body=not head)
            if answer is None:
                break
            answers.append(answer)
            if answer.closes:
                break
    assert answers, "closed without an answer"
    for answer in answers:
        assert answer.status < 500, (answer.status, answer.body[:300])
        assert answer.status in {200, 400, 404, 405, 408, 411, 413, 414, 415, 417, 431, 501} - {501}, answer.status
        if answer.status == 200 and answer.headers["content-type"] == "application/json":
            answer.review()
    if answers[-1].closes or not request.reuse:
        await connection.close()
    return answers


async def flood(webhook, trust, numbers):
    """Send the requests of these numbers; how many answers there were by status."""
    todo, found = iter(numbers), collections.Counter()

    async def work():
        connection = Connection(webhook.port, trust)
        try:
            for number in todo:
                request = fuzz.make(SEED, number)
                try:
                    for answer in await exchange(connection, request):
                        found[answer.status] += 1
                    if not request.reuse:
                        await connection.close()
                except Exception as error:
                    error.add_note(f"seed {SEED}, number {number}: {request.name}: {request.pieces[0][:2000]!r}")
                    raise
        finally:
            await connection.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(WORKERS):
            group.create_task(work())
    return found


async def stall(webhook, trust):
    """A client that stops in the middle; what it gets, and after how long."""
    connection, start = Connection(webhook.port, trust), time.monotonic()
    try:
        async with asyncio.timeout(WAIT_SECONDS + 10):
            await connection.send(fuzz.good("/mutate-pod").pieces[0][:-9])
            answer = await connection.receive()
            return answer.status, time.monotonic() - start
    finally:
        await connection.close()


async def no_tls(webhook):
    """A client that speaks no TLS; it is turned away."""
    reader, writer = await asyncio.open_connection(HOST, webhook.port)
    try:
        writer.write(fuzz.good("/mutate-pod").pieces[0])
        async with asyncio.timeout(WAIT_SECONDS):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def test_every_kind_of_review_is_a_seed():
    assert set(fuzz.SEEDS) == set(REVIEWERS)


def test_the_same_seed_makes_the_same_requests():
    assert [fuzz.make("a", number) for number in range(50)] == [fuzz.make("a", number) for number in range(50)]
    assert fuzz.make("a", 1) != fuzz.make("b", 1)


async def test_whatever_is_sent_gets_an_answer_and_leaves_nothing_behind(cluster, client, namespace, tmp_path):
    await apply_kinds(client)
    flavor = {
        "apiVersion": "topogate.dev/v1alpha1",
        "kind": "ResourceFlavor",
        "metadata": {"name": "fuzz"},
        "spec": {"nodeLabels": {"a": "b"}, "topology": {"levels": [fuzz.BLOCK, fuzz.RACK, fuzz.HOST]}},
    }
    await client.create(RESOURCE_FLAVORS, flavor)
    try:
        async with running(cluster, namespace, tmp_path) as webhook:
            trust = await trust_of(client, namespace)
            stalled = [asyncio.create_task(stall(webhook, trust)) for _ in range(3)]
            assert b"200" not in await no_tls(webhook)
            found, memory, start = collections.Counter(), [], time.monotonic()
            bounds = [0, *(WARM_UP + (COUNT - WARM_UP) * part // PARTS for part in range(PARTS + 1))]
            for first, last in pairwise(bounds):
                found += await flood(webhook, trust, range(FIRST + first, FIRST + last))
                memory.append(webhook.memory)
            rate = COUNT / (time.monotonic() - start)
            mebibytes = ", ".join(f"{each / 2**20:.1f}" for each in memory)
            print(
                f"seed {SEED}: {COUNT} mutated reviews, {rate:.0f}/s, answers {dict(found)}, "
                f"MiB after {WARM_UP} and each tenth of the rest: {mebibytes}"
            )
            for status, seconds in await asyncio.gather(*stalled):
                assert status == 408
                assert seconds > 9
            # It still decides, of every kind, and it complained of nothing of its own.
            connection = Connection(webhook.port, trust)
            for path in fuzz.SEEDS:
                [answer] = await exchange(connection, fuzz.good(path))
                assert answer.review()["patch"]
            await connection.close()
            assert webhook.process.returncode is None
            async with asyncio.timeout(WAIT_SECONDS + 10):
                while webhook.connections:  # a body that does not come is waited for, whoever has left
                    await asyncio.sleep(0.1)
            assert memory[-1] - memory[0] < MORE_BYTES
            lines = [json.loads(line) for line in webhook.log.splitlines()]
            assert not [line for line in lines if line.get("exception") or line["level"] == "error"][:1], webhook.log
        # Real reviews, wrong ones, and wrong HTTP all came up in number.
        assert found[200] > COUNT / 4
        assert found[400] > COUNT / 10
    finally:
        with suppress(NotFound):
            await client.delete(RESOURCE_FLAVORS, "fuzz")
