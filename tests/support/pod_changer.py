"""Mutating webhooks of somebody else, which change pods as they are made, in what decides where they may run.

A real HTTPS server on the loopback interface. Two configurations name it: one webhook is called before ours, and one
after it. They change a third of the kinds of pods, and change their mind after so many pods, also amid a gang.
"""

import base64
import json
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from aiohttp import web
from support.extender import KIND
from support.jobs import RACK_LABEL

from certs.authority import Lifetimes, create
from certs.tls import ServerTls
from kube.client import Client
from kube.resources import MUTATING_WEBHOOKS, RUNTIME_CLASSES
from localcluster.nodes import BLOCK_LABEL, GROUP_LABEL, HOSTNAME_LABEL

HOST = "127.0.0.1"
JOB = "batch.kubernetes.io/job-name"
THIRD = 1 / 3
CHANGES = 11  # pods after which it changes its mind
RUNTIME_CLASS = "sandboxed"
SEES = {"before": "a-mesh", "after": "zz-mesh"}  # configurations are called in the order of their names
Json = dict[str, Any]


def _added(path: str, value: Any) -> Json:
    return {"op": "add", "path": f"/spec/{path}", "value": value}


def _proxy(cpu: str) -> Json:
    return {"name": "proxy", "image": "proxy", "resources": {"requests": {"cpu": cpu, "memory": "4Gi"}}}


def _keep_off(label: str, values: list[str]) -> Json:
    terms = [{"matchExpressions": [{"key": label, "operator": "NotIn", "values": values}]}]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def _tolerating(pod: Json) -> list[Json]:
    there = pod["spec"].get("tolerations", ())
    return [*there, {"key": "example.com/spot", "operator": "Exists", "effect": "NoSchedule"}]


def _of_its_job(pod: Json) -> Json:
    return {"labelSelector": {"matchLabels": {JOB: pod["metadata"]["labels"][JOB]}}, "topologyKey": HOSTNAME_LABEL}


def _alone(pod: Json) -> Json:
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [_of_its_job(pod)]}}


def _spread(pod: Json) -> list[Json]:
    return [{**_of_its_job(pod), "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]


_REQUESTS = "containers/0/resources/requests"
# What it does to a pod, by name: when it is called, and the JSON Patch for such a pod.
WAYS: dict[str, tuple[str, Callable[[Json], list[Json]]]] = {
    "container": ("before", lambda _: [_added("containers/-", _proxy("8"))]),
    "sidecar": ("after", lambda _: [_added("initContainers", [{**_proxy("40"), "restartPolicy": "Always"}])]),
    "toleration": ("before", lambda pod: [_added("tolerations", _tolerating(pod))]),
    "selector": ("after", lambda _: [_added("nodeSelector", {BLOCK_LABEL: "b2"})]),
    "affinity": ("before", lambda _: [_added("affinity", _keep_off(RACK_LABEL, ["r1", "r2"]))]),
    "amounts": ("after", lambda _: [_added(f"{_REQUESTS}/cpu", "40"), _added(f"{_REQUESTS}/memory", "200Gi")]),
    "host port": ("after", lambda _: [_added("containers/0/ports", [{"containerPort": 9000, "hostPort": 9000}])]),
    "anti-affinity": ("before", lambda pod: [_added("affinity", _alone(pod))]),
    "spread": ("after", lambda pod: [_added("topologySpreadConstraints", _spread(pod))]),
    "RuntimeClass": ("before", lambda _: [_added("runtimeClassName", RUNTIME_CLASS)]),
}


class PodChanger:
    """See the module. What is changed follows from ``seed`` and ``round``; ``changed``: pods, by what was done.

    ``unlike``: Jobs of whose pods it did not do the same to all, one after the other or at once.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.round = 0
        self.changed: Counter[str] = Counter()
        self._reviewed = 0
        self._ways: defaultdict[str, set[str | None]] = defaultdict(set)  # by Job

    @property
    def unlike(self) -> int:
        return sum(len(ways) > 1 for ways in self._ways.values())

    def way(self, kind: str) -> str | None:
        """What is done to pods of a kind now; None for nothing."""
        dice = random.Random(f"{self.seed} {self.round} {kind}")
        return dice.choice(sorted(WAYS)) if dice.random() < THIRD else None

    async def review(self, request: web.Request) -> web.Response:
        review = await request.json()
        when, pod = request.match_info["when"], review["request"]["object"]
        labels = pod["metadata"]["labels"]
        way = self.way(labels[KIND])
        response: Json = {"uid": review["request"]["uid"], "allowed": True}
        if way is not None and WAYS[way][0] == when:
            patch = base64.b64encode(json.dumps(WAYS[way][1](pod)).encode()).decode()
            response |= {"patchType": "JSONPatch", "patch": patch}
            self.changed[way] += 1
        if when == "after":
            self._ways[labels[JOB]].add(way)
            self._reviewed += 1
            self.round = self._reviewed // CHANGES
        return web.json_response({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response})


@asynccontextmanager
async def serving(client: Client, made: PodChanger) -> AsyncIterator[None]:
    """It is called for all pods that say their kind, as long as it is open."""
    app = web.Application(client_max_size=16 << 20)
    app.router.add_post("/{when}", made.review)
    bundle, tls = create([HOST], datetime.now(UTC), Lifetimes()), ServerTls()
    tls.load(bundle.cert_pem, bundle.key_pem)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, HOST, 0, ssl_context=tls.context).start()
        port = runner.addresses[0][1]
        await client.create(RUNTIME_CLASSES, _runtime_class())
        for when, name in SEES.items():
            await client.create(MUTATING_WEBHOOKS, _configuration(name, f"https://{HOST}:{port}/{when}", bundle.ca_pem))
        yield
    finally:
        await runner.cleanup()


def _runtime_class() -> Json:
    return {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": RUNTIME_CLASS},
        "handler": "runsc",
        "overhead": {"podFixed": {"cpu": "30", "memory": "8Gi"}},
        "scheduling": {"nodeSelector": {GROUP_LABEL: "tas"}},
    }


def _configuration(name: str, url: str, ca_pem: bytes) -> Json:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    webhook = {
        "name": f"{name}.example.com",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "rules": [rule],
        "objectSelector": {"matchExpressions": [{"key": KIND, "operator": "Exists"}]},
        "clientConfig": {"url": url, "caBundle": base64.b64encode(ca_pem).decode()},
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [webhook],
    }
