"""The webhook: whatever it is sent, by the API server or by whoever reaches its port, it answers the others.

After each attack an honest Job comes through it.
"""

import asyncio
import contextlib
import json
import ssl

import pytest
from support.accounts import label
from support.jobs import KEYS, RACK_LABEL
from support.queues import queued
from support.siege import ANYWHERE, GPUS, pod

from kube.errors import ApiError
from kube.patches import PatchType
from kube.resources import JOBS, WORKLOADS

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]
WEBHOOK = True

OWNER = {"name": "nobody", "uid": "0a1b", "controller": True}


def plain(name="evil", pods=2, **options):
    """As a user writes it: neither gate nor suspended."""
    body = queued(name, pods, gated=False, **{"request": {}, **options})
    del body["spec"]["suspend"]
    del body["spec"]["template"]["metadata"]["annotations"][KEYS.pod_set]
    return body


async def test_a_queued_job_comes_ready_to_run(siege):
    made = await siege.create(plain(pods=6))
    assert made["spec"]["suspend"]
    assert made["spec"]["template"]["spec"]["schedulingGates"] == [{"name": KEYS.gate}]
    await siege.reason("evil", "ExceedsQuota")
    assert await siege.run_gpus() == 0


FORGED = {
    "a JobSet": {**OWNER, "kind": "JobSet", "apiVersion": "jobset.x-k8s.io/v1alpha2"},
    "a Job of a made-up group": {**OWNER, "kind": "Job", "apiVersion": "made.up/v1"},
    "a Job": {**OWNER, "kind": "Job", "apiVersion": "batch/v1"},
}


@pytest.mark.parametrize("whose", FORGED)
async def test_a_queued_job_that_says_to_be_of(siege, whose):
    body = plain(pods=6)
    body["metadata"]["ownerReferences"] = [FORGED[whose]]
    made = await siege.create(body)
    assert made["spec"]["suspend"]
    await siege.stands()
    assert await siege.run_gpus() == 0


@pytest.mark.parametrize("whose", FORGED)
async def test_a_pod_with_a_request_that_says_to_be_of(siege, whose):
    """Each is gated; none gets to a node beside the quota."""
    for number in range(6):
        body = pod(f"evil-{number}", gated=False, owner=FORGED[whose], labels={KEYS.queue_name: "team"})
        made = await siege.create(body)
        assert made["spec"]["schedulingGates"] == [{"name": KEYS.gate}]
    await siege.stands()
    assert await siege.run_gpus() <= 4 * GPUS


@pytest.mark.parametrize("asks", [{KEYS.queue_name: "team"}, {}])
async def test_a_pod_that_names_its_node(siege, asks):
    body = pod("evil", gated=False, labels=asks, nodeName=f"{siege.name}-b1-r1-h1")
    with pytest.raises(ApiError) as error:
        await siege.create(body)
    assert error.value.status in {403, 422}, error.value


async def test_a_queue_is_taken_from_a_job_that_waits_or_runs(siege):
    await siege.create(plain())
    await siege.mine.running("evil", 2)
    for value in (None, "other"):
        with pytest.raises(ApiError, match="queue-name"):
            await siege.tenant.patch(JOBS, "evil", siege.namespace, **label({KEYS.queue_name: value}))
    await siege.paid(2 * GPUS)


async def test_the_gate_is_taken_from_the_template_of_a_suspended_job(siege):
    await siege.create(plain(pods=6))
    body = {"spec": {"template": {"spec": {"schedulingGates": None}}}}
    with contextlib.suppress(ApiError):
        await siege.tenant.patch(JOBS, "evil", siege.namespace, body=body, content_type=PatchType.MERGE)
    found = await siege.admin.get(JOBS, "evil", siege.namespace)
    assert found["spec"]["template"]["spec"]["schedulingGates"] == [{"name": KEYS.gate}]


async def test_a_dry_run_leaves_nothing(siege):
    for number in range(20):
        await siege.tenant.create(JOBS, plain(f"evil-{number}"), siege.namespace, dry_run=True)
    await asyncio.sleep(1)
    assert await siege.admin.list(JOBS, siege.namespace) == []
    found = await siege.admin.list(WORKLOADS, siege.namespace)
    assert not [one for one in found if one["metadata"]["uid"] not in siege.before]


def many_resources(count):
    names = {f"example.com/r{number}": "1" for number in range(count)}
    container = {"name": "c", "image": "i", "resources": {"requests": names, "limits": names}}
    return {"pod_spec": {"containers": [container]}}


REFUSED = {
    "8,000 resource names": many_resources(8000),
    "1,000 containers": {"pod_spec": {"containers": [{"name": f"c{n}", "image": "i"} for n in range(1000)]}},
    "5,000 keys in the node selector": {"pod_spec": {"nodeSelector": {f"example.com/k{n}": "v" for n in range(5000)}}},
    "slices of a size of 5,000 digits": {"request": {KEYS.slice_level: RACK_LABEL, KEYS.slice_size: "1" * 5000}},
    "constraints nested 100,000 deep": {"request": {**ANYWHERE, KEYS.slice_layers: "[" * 100_000}},
    "a level that there is none of": {"request": {KEYS.required[0]: "example.com/nowhere"}},
    "two levels": {"request": {KEYS.required[0]: RACK_LABEL, KEYS.preferred[0]: RACK_LABEL}},
}


@pytest.mark.parametrize("what", REFUSED)
async def test_a_job_is_refused_with(siege, what):
    with pytest.raises(ApiError) as error:
        await siege.create(plain(**REFUSED[what]))
    assert error.value.status in {403, 422}, error.value
    assert len(str(error.value)) < 8192


async def test_fifty_jobs_of_two_hundred_kilobytes(siege):
    for number in range(50):
        body = plain(f"evil-{number}")
        body["metadata"]["annotations"]["example.com/large"] = "x" * 200_000
        await siege.create(body)


# --- by its port -----------------------------------------------------------------------------------------------------


def post(body, path="/mutate-job", *, head=b"", length=None):
    """A request as it goes over the wire."""
    size = len(body) if length is None else length
    return b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n%b\r\n%b" % (path.encode(), size, head, body)


def review(obj, **request):
    whole = {"uid": "u", "kind": {"kind": "Job"}, "operation": "CREATE", "object": obj, **request}
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": whole}).encode()


DEEP = b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","object":'
RAW = {
    "nothing but a line": b"\r\n" * 1000,
    "no HTTP at all": b"\x00\xff\x16\x03\x01" * 2000,
    "lists nested a million deep": post(DEEP + b"[" * 1_000_000),
    "objects nested a million deep": post(DEEP + b'{"a":' * 200_000),
    "a number of a million digits": post(
        review({"spec": {"parallelism": 1}}).replace(b": 1}", b": " + b"1" * 1_000_000)
    ),
    "a number beyond all numbers": post(review({"spec": {"parallelism": 1}}).replace(b": 1}", b": 1e999999}")),
    "text that is no UTF-8": post(review({"metadata": {"name": "N"}}).replace(b"N", b"\xff\xfe\xed\xa0\x80")),
    "half of a surrogate": post(review({"metadata": {"name": "N"}}).replace(b"N", b"\\ud800")),
    "a uid of four megabytes": post(review({}, uid="u" * 4_000_000)),
    "an object that is a list": post(review([1, 2, 3])),
    "annotations that are numbers": post(review({"metadata": {"annotations": {KEYS.required[0]: 1}}})),
    "an old object alone": post(review(None, operation="UPDATE", oldObject=plain())),
    "a body of nine megabytes": post(b" " * 9_000_000),
    "a length below zero": post(b"{}", length=-1),
    "a length of twenty digits": post(b"{}", head=b"", length=10**19),
    "two lengths": post(b"{}", head=b"Content-Length: 5\r\n"),
    "length and chunks": post(b"{}", head=b"Transfer-Encoding: chunked\r\n"),
    "a header of a megabyte": post(b"{}", head=b"X: " + b"y" * 1_000_000 + b"\r\n"),
    "a hundred thousand headers": post(b"{}", head=b"X: y\r\n" * 100_000),
    "a path out of the tree": b"GET /../../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n",
    "the metrics": b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
}


def trust():
    """Whoever reaches the port trusts anybody."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    made.verify_mode = ssl.CERT_NONE
    return made


async def send(port, data, *, tls=True):
    """What comes back; nothing where the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust() if tls else None)
    found = b""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(15):
            writer.write(data)
            await writer.drain()
            found = await reader.read(65536)
    writer.close()
    with contextlib.suppress(OSError, ssl.SSLError):
        await writer.wait_closed()
    return found


@pytest.mark.parametrize("what", RAW)
async def test_its_port_is_sent(siege, what):
    answers = await asyncio.gather(*(send(siege.webhook.port, RAW[what]) for _ in range(5)))
    for answer in answers:
        assert not answer.startswith(b"HTTP/1.1 5"), answer[:300]
        assert b"root:" not in answer
        assert b"topogate_" not in answer


async def test_its_port_is_sent_no_tls(siege):
    await asyncio.gather(*(send(siege.webhook.port, b"GET / HTTP/1.1\r\n\r\n", tls=False) for _ in range(50)))


CROWDS = {
    "say nothing": b"",
    "begin a head": b"POST /mutate-job HTTP/1.1\r\nHost: x\r\nX: y",
    "begin a body": b"POST /mutate-job HTTP/1.1\r\nHost: x\r\nContent-Length: 4000000\r\n\r\n{",
    "begin no handshake": None,
}


@pytest.mark.parametrize("what", CROWDS)
async def test_three_hundred_connections_that(siege, what):
    """More than the webhook keeps, so the API server's own have to find room all the same."""
    data, writers = CROWDS[what], []
    for _ in range(300):
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(
                "127.0.0.1", siege.webhook.port, ssl=None if data is None else trust()
            )
            writer.write(data or b"")
            writers.append(writer)
    await siege.stands()
    for writer in writers:
        writer.transport.abort()
