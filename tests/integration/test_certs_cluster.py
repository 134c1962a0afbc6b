"""Certificates in a real Secret, caBundle in a real configuration: replicas, repair, rotation."""

import asyncio
import base64
import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from certs import store, trust
from certs.authority import Lifetimes, create, fingerprint
from certs.foreign import CertificatesMissingError
from certs.manager import CertificateManager
from certs.options import CertificateOptions
from certs.rotation import UNKNOWN, Replica
from clock import SYSTEM, Clock
from kube.errors import NotFound
from kube.patches import PatchType
from kube.resources import MUTATING_WEBHOOKS, PODS, SECRETS

pytestmark = pytest.mark.cluster

NAME = "topogate-certs-test"
LIVES = Lifetimes(ca=timedelta(days=3650), leaf=timedelta(days=3650), renew_before=timedelta(days=1))


def options_in(namespace, **changes):
    values = {"hosts": ("127.0.0.1",), "mutating": (NAME,), "validating": (NAME,), "lifetimes": LIVES, **changes}
    return CertificateOptions(namespace=namespace, secret="certs", check_seconds=0.02, settle_seconds=60.0, **values)


def unheard(*_):
    """Nobody reads the events."""


def replica(client, namespace, name="a", on_change=lambda _: None, **changes):
    """One replica, whose clock for waiting stands still unless ``monotonic`` says otherwise."""
    own = {key: changes.pop(key) for key in ("clock", "monotonic", "notify") if key in changes}
    options = options_in(namespace, replica=name, **changes)
    return CertificateManager(client, options, on_change, **{"monotonic": lambda: 0.0, "notify": unheard, **own})


async def ensure(client, options):
    """What a replica serves after its first round."""
    manager = CertificateManager(client, options, lambda _: None, notify=unheard, monotonic=SYSTEM.monotonic)
    await manager.run_round()
    return manager.bundle


async def stored(client, namespace):
    return await store.read(client, namespace, "certs")


async def annotate(client, namespace, **annotations):
    body = {"metadata": {"annotations": {f"topogate.dev/{key}": text for key, text in annotations.items()}}}
    await client.patch(SECRETS, "certs", namespace, body=body)


@pytest.fixture
async def configuration(client):
    """A configuration of two webhooks that nothing ever calls."""
    hooks = [
        {
            "name": f"{name}.topogate.dev",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Ignore",
            "clientConfig": {"url": "https://127.0.0.1:1/"},
            "rules": [
                {
                    "apiGroups": ["none.topogate.dev"],
                    "apiVersions": ["v1"],
                    "operations": ["CREATE"],
                    "resources": ["x"],
                }
            ],
        }
        for name in ("one", "two")
    ]
    obj = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": NAME},
        "webhooks": hooks,
    }
    await client.create(MUTATING_WEBHOOKS, obj)
    yield obj
    with suppress(NotFound):
        await client.delete(MUTATING_WEBHOOKS, NAME)


async def bundles(client):
    found = await client.get(MUTATING_WEBHOOKS, NAME)
    return [base64.b64decode(hook["clientConfig"].get("caBundle") or "") for hook in found["webhooks"]]


def empty_secret():
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "certs"}, "type": "Opaque"}


@pytest.mark.parametrize("place", ["absent", "empty"])
async def test_replicas_that_start_at_once_end_with_one_ca(client, namespace, place):
    if place == "empty":
        await client.create(SECRETS, empty_secret(), namespace)
    options = [options_in(namespace, replica=f"r{number}") for number in range(5)]
    found = await asyncio.gather(*(ensure(client, option) for option in options))
    assert len({bundle.ca_pem for bundle in found}) == 1
    assert len({bundle.cert_pem for bundle in found}) == 1
    assert await ensure(client, options[0]) == found[0]
    now = await stored(client, namespace)
    assert now.bundle == found[0]
    assert {name: each.needs for name, each in now.replicas.items()} == {
        option.replica: (fingerprint(found[0].issuer),) for option in options
    }


async def test_replicas_with_other_names_end_with_a_certificate_for_all(client, namespace):
    options = [options_in(namespace, hosts=(f"10.0.0.{n}",)) for n in range(3)]
    await asyncio.gather(*(ensure(client, option) for option in options))
    final = await asyncio.gather(*(ensure(client, option) for option in options))
    assert len({bundle.cert_pem for bundle in final}) == 1
    assert final[0].hosts == {"10.0.0.0", "10.0.0.1", "10.0.0.2"}


async def test_the_ca_is_published_once_and_repaired_when_it_is_lost(client, namespace, configuration):
    served = []
    manager = CertificateManager(
        client, options_in(namespace), served.append, notify=unheard, monotonic=SYSTEM.monotonic
    )
    await manager.run_round()
    assert manager.published
    assert await bundles(client) == [manager.bundle.ca_pem] * 2
    version = (await client.get(MUTATING_WEBHOOKS, NAME))["metadata"]["resourceVersion"]
    await manager.run_round()
    assert (await client.get(MUTATING_WEBHOOKS, NAME))["metadata"]["resourceVersion"] == version
    assert len(served) == 1

    body = {"webhooks": [{"name": "two.topogate.dev", "clientConfig": {"caBundle": None}}]}
    await client.patch(MUTATING_WEBHOOKS, NAME, body=body, content_type=PatchType.STRATEGIC)
    assert (await bundles(client))[1] == b""
    await manager.run_round()
    assert await bundles(client) == [manager.bundle.ca_pem] * 2


async def test_a_configuration_that_is_not_there_is_passed_over(client, namespace):
    manager = replica(client, namespace)
    await manager.run_round()
    assert manager.published


async def test_a_deleted_secret_comes_back_as_it_was(client, namespace, configuration):
    manager = CertificateManager(
        client, options_in(namespace), lambda _: None, notify=unheard, monotonic=SYSTEM.monotonic
    )
    await manager.run_round()
    before = manager.bundle
    await client.delete(SECRETS, "certs", namespace)
    await manager.run_round()
    assert manager.bundle == before
    assert await ensure(client, options_in(namespace)) == before


@pytest.mark.parametrize("why", ["age", "wish"])
async def test_a_ca_is_rotated_without_a_gap(client, namespace, configuration, why):
    """Two replicas; whatever one serves, the API server was told of its CA long before."""
    clock = {"now": datetime.now(UTC) - timedelta(days=2500), "mono": 0.0}
    served = []

    async def trusted():
        return [
            store.bundle_of({"ca.crt": base64.b64encode(each).decode()}).authorities for each in await bundles(client)
        ]

    def make(name):
        return replica(
            client,
            namespace,
            name,
            lambda bundle: served.append((name, bundle.issuer)),
            clock=lambda: clock["now"],
            monotonic=lambda: clock["mono"],
        )

    replicas = [make("a"), make("b")]
    for each in replicas:
        await each.run_round()
    old = replicas[0].bundle
    if why == "age":
        clock["now"] = datetime.now(UTC)  # past two thirds of the CA's life
    else:
        await annotate(client, namespace, rotate="ca")

    for each in replicas:
        await each.run_round()
    assert [each.bundle.cert_pem for each in replicas] == [old.cert_pem] * 2
    both = replicas[0].bundle.authorities
    assert both[1:] == old.authorities
    assert await trusted() == [both] * 2
    assert not (await stored(client, namespace)).asked

    clock["mono"] = 59.0
    await replicas[0].run_round()
    assert replicas[0].bundle.cert_pem == old.cert_pem
    clock["mono"] = 61.0
    for _ in range(3):
        await replicas[0].run_round()  # it serves the new one; the other replica has not looked yet
        assert await trusted() == [both] * 2
    assert replicas[0].bundle.issuer == both[0]
    assert replicas[1].bundle.issuer == both[1]
    for each in (*replicas, *replicas):
        await each.run_round()
    assert len({each.bundle.cert_pem for each in replicas}) == 1
    await replicas[0].run_round()
    assert await trusted() == [both[:1]] * 2
    assert (await stored(client, namespace)).retired == (fingerprint(both[1]),)
    assert served == [("a", both[1]), ("b", both[1]), ("a", both[0]), ("b", both[0])]


async def test_a_replica_says_what_it_may_serve_before_it_serves_it(client, namespace, configuration, monkeypatch):
    clock, said, served = {"mono": 0.0}, {}, []
    write = store.write

    async def noting(*arguments, annotations, **more):
        await write(*arguments, annotations=annotations, **more)
        said.update(annotations)

    def on_change(bundle):
        needs = json.loads(said[f"{store.REPLICA_PREFIX}a"])["needs"]
        served.append(fingerprint(bundle.issuer))
        assert set(served) == set(needs)  # the one it leaves and the one it takes up

    monkeypatch.setattr(store, "write", noting)
    manager = replica(client, namespace, on_change=on_change, monotonic=lambda: clock["mono"])
    await manager.run_round()
    await annotate(client, namespace, rotate="ca")
    await manager.run_round()
    clock["mono"] = 61.0
    await manager.run_round()
    assert len(set(served)) == 2
    await manager.run_round()
    assert json.loads(said[f"{store.REPLICA_PREFIX}a"])["needs"] == served[-1:]


async def test_an_old_ca_outlives_no_pod_that_is_gone(client, namespace, configuration):
    """A replica was killed with its node: what it said of itself counts until its pod is gone, and no longer."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "webhook-b"},
        "spec": {"containers": [{"name": "c", "image": "i"}], "nodeSelector": {"none": "such"}},
    }
    uid = (await client.create(PODS, pod, namespace))["metadata"]["uid"]
    other = replica(client, namespace, uid, pod="webhook-b", pod_uid=uid)
    await other.run_round()
    clock = {"mono": 0.0}
    own = replica(client, namespace, monotonic=lambda: clock["mono"])
    await own.run_round()
    await annotate(client, namespace, rotate="ca")
    for _ in range(5):
        clock["mono"] += 100.0
        await own.run_round()
    now = await stored(client, namespace)
    assert len(now.bundle.authorities) == 2
    assert now.bundle.issuer == now.bundle.authorities[0]

    await client.delete(PODS, "webhook-b", namespace, grace_period=0)
    for _ in range(2):
        await own.run_round()
    now = await stored(client, namespace)
    assert len(now.bundle.authorities) == 1
    assert set(now.replicas) == {"a"}


async def test_a_replica_that_leaves_says_so(client, namespace):
    one, two = replica(client, namespace), replica(client, namespace, "b")
    await one.run_round()
    await two.run_round()
    await one.withdraw_replica()
    assert set((await stored(client, namespace)).replicas) == {"b"}
    await client.delete(SECRETS, "certs", namespace)
    await two.withdraw_replica()  # there is nothing to say it in


async def test_a_leaf_is_made_anew_when_it_is_asked_for(client, namespace, configuration):
    manager = replica(client, namespace)
    await manager.run_round()
    before = manager.bundle
    await annotate(client, namespace, rotate="leaf")
    await manager.run_round()
    assert manager.bundle.ca_pem == before.ca_pem
    assert manager.bundle.cert_pem != before.cert_pem
    await annotate(client, namespace, rotate="everything")
    after = manager.bundle
    await manager.run_round()
    assert manager.bundle == after


async def test_a_secret_of_a_backup_is_served_only_once_its_ca_is_known(client, namespace, configuration):
    """Somebody restores an old Secret, while two replicas serve certificates that the API server trusts."""
    clock = {"mono": 0.0}
    replicas = [replica(client, namespace, name, monotonic=lambda: clock["mono"]) for name in "ab"]
    for each in replicas:
        await each.run_round()
    before = replicas[0].bundle
    backup = create(["127.0.0.1"], datetime.now(UTC), LIVES)
    await client.delete(SECRETS, "certs", namespace)
    await client.create(SECRETS, {**empty_secret(), "data": store.data_of(backup)}, namespace)
    for each in replicas:
        await each.run_round()
        assert each.bundle.cert_pem == before.cert_pem
    assert await bundles(client) == [backup.ca_pem + before.ca_pem] * 2
    clock["mono"] = 61.0
    for each in (*replicas, *replicas, *replicas):
        await each.run_round()
    assert [each.bundle.cert_pem for each in replicas] == [backup.cert_pem] * 2
    now = await stored(client, namespace)
    # Who else serves a certificate of the CA that was taken in nobody can know: it stays as long as one could live.
    assert now.replicas[UNKNOWN].needs == (fingerprint(before.issuer),)


@pytest.mark.parametrize("gone", ["data", "key", "everything"])
async def test_a_secret_that_was_emptied_is_put_back_by_whoever_serves(client, namespace, configuration, gone):
    told = []
    manager = replica(client, namespace, notify=lambda *event: told.append(event[1:]))
    await manager.run_round()
    before = manager.bundle
    if gone == "everything":
        await client.delete(SECRETS, "certs", namespace)
        await client.create(SECRETS, empty_secret(), namespace)
    else:
        await client.patch(
            SECRETS,
            "certs",
            namespace,
            body={
                "data": {"tls.crt": "", "tls.key": ""} | dict.fromkeys(("ca.crt", "ca.key"))
                if gone == "data"
                else {"ca.key": None}
            },
        )
    fresh = replica(client, namespace, "b")
    told.clear()
    await manager.run_round()
    assert manager.bundle == before
    assert (await stored(client, namespace)).bundle == before
    assert [(kind, str(reason)) for kind, reason, _ in told] == [("Warning", "CertificatesRepaired")]
    await fresh.run_round()
    assert fresh.bundle == before


async def test_where_nobody_serves_any_more_a_broken_secret_starts_over_beside_what_is_trusted(
    client, namespace, configuration
):
    """A new process, a Secret full of garbage, and API servers that trust a CA of which others may serve."""
    await replica(client, namespace).run_round()
    old = (await bundles(client))[0]
    body = {"data": dict.fromkeys(("ca.crt", "ca.key", "tls.crt", "tls.key"), base64.b64encode(b"x").decode())}
    await client.patch(SECRETS, "certs", namespace, body=body)
    clock, told = {"mono": 0.0}, []
    fresh = replica(
        client, namespace, "b", monotonic=lambda: clock["mono"], notify=lambda *event: told.append(str(event[2]))
    )
    with pytest.raises(CertificatesMissingError, match="API servers get 60 s to notice the new CA"):
        await fresh.run_round()
    assert told == ["CertificatesRepaired", "CertificatesRotated"]
    assert not fresh.published
    both = (await bundles(client))[0]
    assert both.endswith(old)
    assert both != old
    clock["mono"] = 61.0
    await fresh.run_round()
    assert fresh.published
    assert (await bundles(client))[0] == both


async def test_an_expired_certificate_is_replaced_at_once(client, namespace, configuration):
    clock = {"now": datetime.now(UTC) - timedelta(days=400)}
    short = Lifetimes(ca=timedelta(days=3650), leaf=timedelta(days=30), renew_before=timedelta(days=1))
    await replica(client, namespace, lifetimes=short, clock=lambda: clock["now"]).run_round()
    before = await bundles(client)
    told = []
    fresh = replica(client, namespace, "b", lifetimes=short, notify=lambda *event: told.append(event))
    await fresh.run_round()
    assert fresh.published
    assert fresh.bundle.not_after > datetime.now(UTC)
    assert await bundles(client) == before
    assert "tls.crt is valid from" in told[0][3]


async def test_the_time_is_the_api_servers(client, namespace, monkeypatch):
    """This machine's clock is years off; what it signs is right all the same."""

    wrong = Clock(datetime(1990, 1, 1, tzinfo=UTC).timestamp, SYSTEM.monotonic)
    monkeypatch.setattr(client, "_clock", wrong)
    bundle = await ensure(client, options_in(namespace))
    monkeypatch.undo()
    assert abs(bundle.leaf.not_valid_before_utc - datetime.now(UTC)) < timedelta(minutes=6)
    client.transport.date = "yesterday"
    assert abs(client.server_time() - datetime.now(UTC)) < timedelta(seconds=5)


async def test_a_write_that_comes_late_takes_no_ca_away(client, namespace, configuration, monkeypatch):
    """A replica reads, sleeps, and writes the caBundle when another has long put a new CA there."""
    slow, quick = replica(client, namespace), replica(client, namespace, "b")
    await slow.run_round()
    body = {"webhooks": [{"name": "two.topogate.dev", "clientConfig": {"caBundle": None}}]}
    await client.patch(MUTATING_WEBHOOKS, NAME, body=body, content_type=PatchType.STRATEGIC)
    publish, asleep, awake = trust.publish, asyncio.Event(), asyncio.Event()

    async def late(*arguments):
        if not asleep.is_set():
            asleep.set()
            await awake.wait()
        return await publish(*arguments)

    monkeypatch.setattr(trust, "publish", late)
    sleeping = asyncio.create_task(slow.run_round())
    await asleep.wait()
    await annotate(client, namespace, rotate="ca")
    await quick.run_round()
    both = quick.bundle.ca_pem
    assert await bundles(client) == [both] * 2
    awake.set()
    await sleeping
    assert await bundles(client) == [both] * 2
    assert slow.bundle.ca_pem == both


async def test_what_replicas_say_that_cannot_be_read_is_taken_away(client, namespace):
    manager = replica(client, namespace)
    await manager.run_round()
    past = Replica(("x",), datetime.now(UTC) - timedelta(seconds=1))
    texts = {"broken": "{", "past": msgspec.json.encode(past).decode()}
    body = {"metadata": {"annotations": {f"{store.REPLICA_PREFIX}{name}": text for name, text in texts.items()}}}
    await client.patch(SECRETS, "certs", namespace, body=body)
    await manager.run_round()
    assert set((await client.get(SECRETS, "certs", namespace))["metadata"]["annotations"]) == {
        f"{store.REPLICA_PREFIX}a"
    }


async def test_a_secret_that_cert_manager_writes_is_not_fought_over(client, namespace, configuration):
    theirs = create(["127.0.0.1"], datetime.now(UTC), LIVES)
    secret = empty_secret() | {"data": store.data_of(theirs)}
    secret["metadata"] = {"name": "certs", "annotations": {"cert-manager.io/certificate-name": "topogate-webhook"}}
    made = await client.create(SECRETS, secret, namespace)
    with pytest.raises(CertificatesMissingError, match="set certificateSource: cert-manager"):
        await replica(client, namespace).run_round()
    after = await client.get(SECRETS, "certs", namespace)
    assert after["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


async def test_cert_managers_secret_is_served_and_never_written(client, namespace, configuration):
    ours = await ensure(client, options_in(namespace))
    foreign = options_in(namespace, sign=False)
    await client.delete(SECRETS, "certs", namespace)
    with pytest.raises(CertificatesMissingError, match=r"certs: expected tls\.crt"):
        await ensure(client, foreign)
    data = {"tls.crt": ours.cert_pem, "tls.key": ours.key_pem, "ca.crt": ours.ca_pem}
    secret = {**empty_secret(), "data": {name: base64.b64encode(part).decode() for name, part in data.items()}}
    made = await client.create(SECRETS, secret, namespace)
    before = await bundles(client)
    manager = CertificateManager(client, foreign, lambda _: None, notify=unheard, monotonic=SYSTEM.monotonic)
    await manager.run_round()
    assert manager.bundle.cert_pem == ours.cert_pem
    assert await bundles(client) == before
    after = await client.get(SECRETS, "certs", namespace)
    assert after["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


async def test_garbage_in_the_secret_is_replaced_and_errors_do_not_end_the_rounds(client, namespace, configuration):
    garbage = {
        **empty_secret(),
        "data": {name: base64.b64encode(b"x").decode() for name in ("tls.crt", "tls.key", "ca.key")},
    }
    await client.create(SECRETS, garbage, namespace)
    calls = []

    def on_change(bundle):
        calls.append(bundle)
        if len(calls) == 1:
            raise RuntimeError("not this time")

    manager = CertificateManager(client, options_in(namespace), on_change, notify=unheard, monotonic=SYSTEM.monotonic)
    running = asyncio.create_task(manager.run())
    try:
        async with asyncio.timeout(30):
            while not manager.bundle:
                await asyncio.sleep(0.01)
    finally:
        running.cancel()
    assert len(calls) == 2
    assert await bundles(client) == [manager.bundle.ca_pem] * 2
