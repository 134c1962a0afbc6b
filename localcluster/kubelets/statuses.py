"""Pod statuses as a kubelet writes them."""

import ipaddress
import zlib
from collections.abc import Mapping
from typing import Any

from localcluster.kubelets.refusals import AdmissionRefusal

POD_ADDRESSES = int(ipaddress.IPv4Address("10.128.0.0"))  # KWOK's pods have the same range
Json = dict[str, Any]


def refused_status(refusal: AdmissionRefusal) -> Json:
    """A pod that failed at admission, as a merge patch.

    The kubelet (seen on 1.37.1) writes a status without conditions, so that PodScheduled goes too: no rule of a
    podFailurePolicy by condition matches such a pod.
    """
    message = f"Pod was rejected: {refusal.message}"
    return {"phase": "Failed", "reason": refusal.reason, "message": message, "conditions": None}


def running(pod: Mapping[str, Any], host: str, now: str) -> Json:
    """A pod whose init containers are through and whose containers run; ``now`` as RFC 3339."""
    spec = pod["spec"]
    address = str(ipaddress.IPv4Address(POD_ADDRESSES + zlib.crc32(pod["metadata"]["uid"].encode()) % (1 << 23)))
    types = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady")
    types += tuple(gate["conditionType"] for gate in spec.get("readinessGates", ()))
    started = {"running": {"startedAt": now}}
    done = {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now}}
    status: Json = {
        "phase": "Running",
        "startTime": now,
        "hostIP": host,
        "hostIPs": [{"ip": host}],
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [
            # Conditions of others stay, PodScheduled among them. A merge patch replaces the whole list.
            *(c for c in pod.get("status", {}).get("conditions", ()) if c["type"] not in types),
            *({"type": name, "status": "True", "lastTransitionTime": now} for name in types),
        ],
        "containerStatuses": [_container(c, started, runs=True) for c in spec["containers"]],
    }
    if spec.get("initContainers"):
        status["initContainerStatuses"] = [
            _container(c, started, runs=True) if c.get("restartPolicy") == "Always" else _container(c, done, runs=False)
            for c in spec["initContainers"]
        ]
    return status


def _container(container: Mapping[str, Any], state: Json, *, runs: bool) -> Json:
    return {
        "name": container["name"],
        "image": container["image"],
        "imageID": "",
        "ready": True,
        "started": runs,
        "restartCount": 0,
        "state": state,
    }
