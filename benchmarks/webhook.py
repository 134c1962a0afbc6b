"""AdmissionReviews a second over TLS, for each second of CPU that the server's process uses.

All servers run side by side in one run, turn by turn, each in a process of its own:

- ``webhook``: what Topogate serves, for a pod that gets gate and annotations, one that has both, and a Job, each like
  one that was seen before, as the pods of one template are; and for pods of which no two are alike to us;
- ``parse and answer``: the same server stack with a handler that only decodes the review and sends a fixed patch;
- ``bare asyncio``: a protocol of a few lines that decodes and answers, with no HTTP library: the ceiling;
- ``aiohttp server``: the same handler behind aiohttp's parser, request and task, with our way of writing answers;
- ``aiohttp app``: an application as it is usually written: router, ``json``, a Response.

After that come calls at a steady rate, each timed from when it was due: what an API server waits for.

The load comes from this process: keep-alive connections, one request at a time on each, half of them always in flight,
so that the server never waits. Requests a core are requests by CPU seconds of the server; what else the machine does
hardly matters to that.
"""

import argparse
import asyncio
import itertools
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.harness import report, webhook_load
from benchmarks.harness.goals import GOALS
from benchmarks.harness.webhook_servers import SERVERS, running, serve
from crds.constants import NUMA_RESOURCES, Keys
from localcluster.process import usage
from webhook.server import JOB_PATH, POD_PATH

REVIEW_BYTES = 4096
REQUEST = {Keys().required[0]: "cloud.example/rack"}
CONNECTIONS = 16
WARM_UP = 2_000
GOAL = 10_000
RATE = 300
GOAL_P99_MS = 5.0
_SERIAL = b"0" * 20


@dataclass(frozen=True)
class Case:
    """One line of the table: a server and what it is asked."""

    name: str
    server: str
    path: str
    body: bytes
    unlike: bool = False  # whether the serial number in it changes with each request


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and print its table."""
    options = _options(arguments)
    if options.serve:
        asyncio.run(serve(options.serve, options.pem))
        return
    cases = _cases()
    found: dict[str, list[tuple[float, float]]] = {case.name: [] for case in cases}
    with running(sorted({case.server for case in cases})) as servers:
        for case in cases:
            _load(servers[case.server][0], case, WARM_UP)
        for _ in range(options.rounds):
            for case in cases:
                found[case.name].append(_measure(*servers[case.server], case, options.requests))
        waits = _pace(servers["webhook"][0], cases, options.seconds)
    _report(cases, found, waits)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks webhook", description=__doc__)
    parser.add_argument("--requests", type=int, default=4_000, help="requests of each case and round")
    parser.add_argument("--rounds", type=int, default=9, help="rounds; the median of each case counts")
    parser.add_argument("--seconds", type=float, default=10.0, help=f"how long calls are made at {RATE} a second")
    parser.add_argument("--serve", choices=sorted(SERVERS), help=argparse.SUPPRESS)
    parser.add_argument("--pem", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _report(cases: Sequence[Case], found: dict[str, list[tuple[float, float]]], waits: dict[str, list[float]]) -> None:
    per_core = {name: statistics.median(cpu for cpu, _ in runs) for name, runs in found.items()}
    floor = per_core["parse and answer"]
    rows = [
        (
            case.name,
            per_core[case.name],
            1e6 / per_core[case.name],
            per_core[case.name] / floor,
            found[case.name][-1][1],
        )
        for case in cases
    ]
    columns = ("server and review", "reviews/s a core", "CPU us", "of parse and answer", "wall/s")
    size = len(cases[0].body)
    report.table(f"AdmissionReviews of {size} bytes over TLS, {CONNECTIONS} connections", columns, rows)
    quantiles = {name: webhook_load.quantiles(taken) for name, taken in waits.items()}
    report.table(
        f"Milliseconds from when a call was due to its answer, at {RATE} a second",
        ("over", "calls", *(f"p{100 * share:g}" for share in webhook_load.SHARES), "most"),
        [
            (name, len(waits[name]), *(1e3 * value for value in found.values()), 1e3 * max(waits[name]))
            for name, found in quantiles.items()
        ],
        note="The client is on the same machine and cores.",
    )
    for case in cases:
        if case.server == "webhook":
            GOALS.at_least(f"{case.name}: a second of CPU", per_core[case.name], GOAL, "reviews")
    for name, found_shares in quantiles.items():
        GOALS.at_most(f"p99 over {name}", 1e3 * found_shares[0.99], GOAL_P99_MS, "ms")
    report.save(
        "webhook",
        {
            "reviews_per_core": per_core,
            "seconds_at_rate": {
                name: {f"p{100 * share:g}": value for share, value in values.items()}
                for name, values in quantiles.items()
            },
        },
    )


def _cases() -> tuple[Case, ...]:
    pod = _review("Pod", {"metadata": {"name": "p", "annotations": REQUEST}, "spec": _pod_spec()})
    keys = Keys()
    numbered = {**REQUEST, NUMA_RESOURCES: f"example.com/n{_SERIAL.decode()}"}
    unlike = _review("Pod", {"metadata": {"name": "p", "annotations": numbered}, "spec": _pod_spec()})
    gated = {"schedulingGates": [{"name": keys.gate}], **_pod_spec()}
    stamped = _review(
        "Pod", {"metadata": {"name": "p", "annotations": {**REQUEST, keys.pod_set: "main"}}, "spec": gated}
    )
    template = {"metadata": {"creationTimestamp": None}, "spec": _pod_spec()}
    job = _review(
        "Job",
        {
            "metadata": {"name": "j", "annotations": REQUEST},
            "spec": {"parallelism": 16, "completions": 16, "template": template},
        },
    )
    return (
        Case("webhook: pod gets gate", "webhook", POD_PATH, pod),
        Case("webhook: pod has gate", "webhook", POD_PATH, stamped),
        Case("webhook: pod unlike any before", "webhook", POD_PATH, unlike, unlike=True),
        Case("webhook: job is stamped", "webhook", JOB_PATH, job),
        Case("parse and answer", "parse-and-answer", POD_PATH, pod),
        Case("bare asyncio", "bare-asyncio", POD_PATH, pod),
        Case("aiohttp server", "aiohttp-server", POD_PATH, pod),
        Case("aiohttp app", "aiohttp-app", POD_PATH, pod),
    )


def _pod_spec() -> dict[str, Any]:
    """Containers as the API server sends them, all defaults filled in."""
    container = {
        "name": "main",
        "image": "registry.example/team/trainer:v1",
        "command": ["python", "-m", "train"],
        "resources": {"limits": {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "1"}},
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
        "volumeMounts": [{"name": "kube-api-access", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}],
        "env": [{"name": f"SETTING_{number}", "value": "some value of usual length"} for number in range(24)],
    }
    return {
        "containers": [container],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "serviceAccountName": "default",
        "securityContext": {},
        "schedulerName": "default-scheduler",
        "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}],
        "priority": 0,
        "enableServiceLinks": True,
        "preemptionPolicy": "PreemptLowerPriority",
    }


def _review(kind: str, obj: dict[str, Any]) -> bytes:
    """A review as the API server sends it, padded with a last-applied annotation to the size that is measured."""
    review = {
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": {"group": "", "version": "v1", "kind": kind},
            "resource": {"group": "", "version": "v1", "resource": f"{kind.lower()}s"},
            "namespace": "default",
            "operation": "CREATE",
            "userInfo": {"username": "admin", "groups": ["system:authenticated"]},
            "object": {"kind": kind, "apiVersion": "v1", **obj},
            "oldObject": None,
            "dryRun": False,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
        },
    }
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": "", **obj["metadata"]["annotations"]}
    review["request"]["object"]["metadata"] = {**obj["metadata"], "annotations": annotations}  # type: ignore[index]
    missing = REVIEW_BYTES - len(json.dumps(review, separators=(",", ":")))
    annotations["kubectl.kubernetes.io/last-applied-configuration"] = "x" * max(missing, 0)
    return json.dumps(review, separators=(",", ":")).encode()


def _measure(port: int, pid: int, case: Case, requests: int) -> tuple[float, float]:
    """Requests by CPU second of the server, and by second."""
    cpu, start = usage(pid)[1], time.perf_counter()
    done = _load(port, case, requests)
    return done / (usage(pid)[1] - cpu), done / (time.perf_counter() - start)


def _load(port: int, case: Case, requests: int) -> int:
    return webhook_load.flood(port, _requests(case), requests, CONNECTIONS)


def _requests(case: Case) -> Iterator[bytes]:
    """The case's requests, without end."""
    whole = webhook_load.request(case.path, case.body)
    if not case.unlike:
        return itertools.repeat(whole)
    return (whole.replace(_SERIAL, b"%020d" % number) for number in itertools.count(time.monotonic_ns()))


def _pace(port: int, cases: Sequence[Case], seconds: float) -> dict[str, list[float]]:
    """Seconds of each call at a steady rate, all cases in turn: over kept connections, and over new ones."""
    mixed = [_requests(case) for case in cases if case.server == "webhook"]
    found: dict[str, list[float]] = {}
    for name, fresh in (("connections that are kept", False), ("a new connection each", True)):
        calls = itertools.chain.from_iterable(zip(*mixed, strict=False))
        found[name] = webhook_load.paced(port, calls, rate=RATE, seconds=seconds, fresh=fresh)
    return found


if __name__ == "__main__":
    main()
