"""The simulated kubelet against what unmodified kubelet v1.36.3 code did in 2,000 cases.

Each case is replayed from its history, so that the state before the pod is also what the kubelet's was.
"""

import pytest
from support.kubelets import cases, make_pod, replay

from localcluster.kubelets.hardware import bits, cpu_list
from localcluster.kubelets.kubelet import MergeStep


def state_of(kubelet):
    found = {
        "free_cpus": cpu_list(kubelet.cpus.free_cpus) if kubelet.settings.static_cpu else None,
        "free_devices": {resource: sorted(kubelet.devices.free_ids(resource)) for resource in kubelet.devices.devices},
    }
    if kubelet.settings.static_memory:
        ids = kubelet.hardware.zone_ids
        found["memory"] = {
            str(kubelet.hardware.zones[position].id): {
                "cells": ids(zone.cells),
                "assignments": zone.assignments,
                "resources": {r: {"allocatable": zone.allocatable[r], "free": zone.free[r]} for r in zone.allocatable},
            }
            for position, zone in enumerate(kubelet.memory.zones)
        }
    return found


def expected_state(case):
    state = case["state"]
    static = case["kubelet"]["cpu_manager_policy"] == "static"
    found = {
        "free_cpus": state.get("free_cpus", "") if static else None,
        "free_devices": {resource: sorted(ids or ()) for resource, ids in state["free_devices"].items()},
    }
    if case["kubelet"]["memory_manager_policy"] == "Static":
        found["memory"] = state["memory"]
    return found


def containers_of(kubelet, pod):
    ids = kubelet.hardware.zone_ids
    held = kubelet.held_by_container(pod.uid)
    return {
        name: (
            cpu_list(container.cpus),
            {resource: sorted(devices) for resource, devices in (container.devices or {}).items()},
            sorted((block.type, ids(block.zones), block.size) for block in container.memory),
        )
        for name, container in held.items()
        if container.cpus or container.devices or container.memory
    }


def expected_containers(case):
    found = {}
    for c in case["expected"].get("containers") or ():
        cpus = c.get("cpuset", "")
        devices = {resource: sorted(ids) for resource, ids in (c.get("devices") or {}).items() if ids}
        memory = sorted((block["type"], block["numa"], block["size"]) for block in c.get("memory") or ())
        if cpus or devices or memory:
            found[c["name"]] = (cpus, devices, memory)
    return found


def zones_of(kubelet, pod):
    mask = 0
    for container in kubelet.held_by_container(pod.uid).values():
        for position, cpus in enumerate(kubelet.hardware.zone_cpus):
            mask |= bool(cpus & container.cpus) << position
        for resource, devices in (container.devices or {}).items():
            for device in devices:
                mask |= kubelet.devices.zones_of_device(resource, device)
        for block in container.memory:
            mask |= block.zones
    return [kubelet.hardware.zones[position].id for position in bits(mask)]


def differences(case):
    kubelet = replay(case)
    found = []
    if state_of(kubelet) != expected_state(case):
        found.append(("state", state_of(kubelet), expected_state(case)))
    pod, expected = make_pod(case["pod"]), case["expected"]
    if pod.qos != case["pod"]["qos"]:
        found.append(("qos", pod.qos, case["pod"]["qos"]))
    verdict = kubelet.admit_pod(pod)
    said = (verdict.refusal.reason, verdict.refusal.message) if verdict.refusal else (None, None)
    wanted = (expected.get("reason"), expected.get("message"))
    if said != wanted:
        found.append(("verdict", said, wanted))
    steps = [
        MergeStep(
            step["container"],
            None if step["merged"] is None else kubelet.hardware.zone_mask(tuple(step["merged"])),
            step["preferred"],
            step["admit"],
        )
        for step in expected.get("steps") or ()
    ]
    if list(verdict.steps) != steps:
        found.append(("steps", verdict.steps, steps))
    if expected["admitted"] and containers_of(kubelet, pod) != expected_containers(case):
        found.append(("containers", containers_of(kubelet, pod), expected_containers(case)))
    zones = zones_of(kubelet, pod)
    if zones != expected["numa_nodes"]:
        found.append(("zones", zones, expected["numa_nodes"]))
    return found


@pytest.mark.timeout(600)
def test_every_recorded_admission_is_replayed_exactly():
    wrong = {case["id"]: found for case in cases() if (found := differences(case))}
    assert not wrong, f"{len(wrong)} of 2,000, such as {next(iter(wrong.items()))}"
