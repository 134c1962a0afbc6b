"""What the API server stores of the values that `tests/support/mutants.py` makes, so that those stay true to it."""

import asyncio
import json

import pytest
from support import mutants
from support.jobs import install_crds, until

from kube.errors import BadRequest, Invalid
from kube.informer import Informer
from kube.resources import JOBS, WORKLOADS
from kube.workloads import WholeWorkload

pytestmark = pytest.mark.cluster

# Of memory: what is stored of what was written, where that is another text.
WRITTEN_ANEW = {
    "1.5": "1500m",
    "1n": "1m",
    "0.000000001": "1m",
    "8Ei": "9223372036854775807",
    "1e-9999": "1e-3",
    ".5": "500m",
    "+.5e+1": "5",
    "999999999999999999999999999999999999999999999Ei": "9223372036854775807",
    "0e0": "0",
    "-0": "0",
}
AS_WRITTEN = ("9223372036854775807", "9223372036854775808", "1E9999", "1e9999", "9" * 64, "123456789012345678901", "5.")
NEGATIVE = ("-1", "-9223372036854775808")
DEPTH = 5000


def job(name, quantity="1", *, resource="memory", **spec):
    container = {"name": "c", "image": "x", "resources": {"limits": {resource: quantity}}}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    head = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}}
    return {**head, "spec": {"suspend": True, "template": template, **spec}}


async def test_quantities(client, namespace):
    assert {*WRITTEN_ANEW, *AS_WRITTEN, *NEGATIVE} <= set(mutants.QUANTITIES)
    for number, (written, kept) in enumerate(
        {**WRITTEN_ANEW, **dict(zip(AS_WRITTEN, AS_WRITTEN, strict=True))}.items()
    ):
        made = await client.create(JOBS, job(f"j{number}", written), namespace)
        (container,) = made["spec"]["template"]["spec"]["containers"]
        assert container["resources"]["limits"]["memory"] == kept, written
    for written in NEGATIVE:
        with pytest.raises(Invalid):
            await client.create(JOBS, job("negative", written), namespace)
    for written in ("1E9999", "9223372036854775808", "1Gi"):
        await client.create(JOBS, job(f"gpu-{written.lower()}", written, resource="nvidia.com/gpu"), namespace)
    with pytest.raises(Invalid):
        await client.create(JOBS, job("part", "100m", resource="nvidia.com/gpu"), namespace)


async def test_annotations_are_any_text_and_labels_are_words(client, namespace):
    for number, text in enumerate((*mutants.TEXTS, *mutants.LONG_TEXTS)):
        body = job(f"t{number}")
        body["metadata"]["annotations"] = {mutants.KEYS.min_parallelism: text}
        made = await client.create(JOBS, body, namespace)
        assert made["metadata"]["annotations"][mutants.KEYS.min_parallelism] == text
    for number, text in enumerate(mutants.LABELS):
        body = job(f"l{number}")
        body["metadata"]["labels"] = {mutants.KEYS.queue_name: text}
        await client.create(JOBS, body, namespace)
    for text in ("\u0661", "9" * 64, "-x", "a b"):
        body = job("wrong")
        body["metadata"]["labels"] = {mutants.KEYS.queue_name: text}
        with pytest.raises(Invalid):
            await client.create(JOBS, body, namespace)


async def test_counts_go_from_0_to_their_32_bits(client, namespace):
    for number in sorted(set(mutants.NUMBERS)):
        body = job(f"c{number}", parallelism=number, completions=number)
        if 0 <= number <= mutants.MOST:
            made = await client.create(JOBS, body, namespace)
            assert (made["spec"]["parallelism"], made["spec"]["completions"]) == (number, number)
        else:
            with pytest.raises((Invalid, BadRequest)):
                await client.create(JOBS, body, namespace)


async def test_a_workload_that_is_nested_deeply_is_passed_over_alone(client, namespace):
    """Whoever may make a Workload may nest its template so; it hides nobody else's."""
    await install_crds(client)
    spec = {"podSets": [{"name": "main", "count": 1, "template": {"spec": {"containers": [], "x": "deep"}}}]}
    body = {"apiVersion": WORKLOADS.api_version, "kind": WORKLOADS.kind, "metadata": {"name": "m"}, "spec": spec}
    text = json.dumps(body).replace('"deep"', "[" * DEPTH + "]" * DEPTH)
    await client.raw("POST", WORKLOADS.path(namespace), body=text.encode())
    await client.create(WORKLOADS, {**body, "metadata": {"name": "honest"}}, namespace)
    seen = []
    informer = Informer(
        client, WORKLOADS, WholeWorkload, namespace=namespace, on_event=lambda event: seen.append(event.key)
    )
    task = asyncio.create_task(informer.run())
    try:
        await informer.wait_synced(30)
        await client.create(WORKLOADS, {**body, "metadata": {"name": "later"}}, namespace)

        async def both():
            return f"{namespace}/later" in informer.store

        await until(both, "the Workload that came later")
        assert seen == [f"{namespace}/honest", f"{namespace}/later"]
    finally:
        task.cancel()
