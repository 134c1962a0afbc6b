"""2,000 admissions by unmodified kubelet 1.36 code: verdicts, merged hints, zones, CPUs and devices."""

import gzip
from pathlib import Path

import msgspec
import pytest

from cli.whatif.admit import AdmitForm
from cli.whatif.machines import cpu_mask, from_state, kubelet_of, pod_shape
from cli.whatif.nrt import from_nrt
from engine.kubelet.admit import admit, placement_of
from engine.kubelet.charge import charge, release
from engine.kubelet.devices.links import bits

DATA = Path(__file__).parents[3] / "data" / "numa.jsonl.gz"


class Recorded(msgspec.Struct, frozen=True):
    form: AdmitForm
    expected: dict


@pytest.fixture(scope="module")
def cases():
    decoder = msgspec.json.Decoder(AdmitForm)
    with gzip.open(DATA, "rb") as lines:
        return [Recorded(decoder.decode(line), msgspec.json.decode(line)["expected"]) for line in lines]


def known(case):
    layout, state = from_state(case.form.machine, case.form.kubelet, case.form.state)
    return layout, state, pod_shape(case.form.pod)


def named(layout, mask):
    return None if mask is None else [layout.zones[zone].id for zone in bits(mask)]


def steps_of(layout, admission):
    return [(step.container, named(layout, step.merged), step.preferred, step.admit) for step in admission.steps]


def steps_expected(case):
    return [(s["container"], s["merged"], s["preferred"], s["admit"]) for s in case.expected.get("steps") or []]


def test_from_full_state_every_verdict_message_and_merged_hint_is_the_kubelets(cases):
    wrong = []
    for case in cases:
        layout, state, pod = known(case)
        admission = admit(layout, state, pod)
        want = (case.expected["admitted"], case.expected.get("reason", ""), case.expected.get("message", ""))
        if (admission.admitted, admission.reason, admission.message) != want:
            wrong.append((case.form.id, admission.reason, admission.message, want))
        if steps_of(layout, admission) != steps_expected(case):
            wrong.append((case.form.id, steps_of(layout, admission), steps_expected(case)))
    assert len(cases) == 2000
    assert not wrong


def test_from_full_state_zones_cpus_and_devices_are_the_kubelets(cases):
    wrong, compared = [], 0
    for case in cases:
        if not case.expected["admitted"]:
            continue
        compared += 1
        layout, state, pod = known(case)
        admission = admit(layout, state, pod)
        cpus, devices = 0, {}
        for container in case.expected["containers"]:
            cpus |= cpu_mask(container.get("cpuset") or "")
            for resource, ids in (container.get("devices") or {}).items():
                devices.setdefault(resource, set()).update(ids)
        listed = {resource: [device.id for device in some] for resource, some in case.form.machine.devices.items()}
        ours = {resource: {listed[resource][at] for at in bits(mask)} for resource, mask in admission.devices}
        want = (case.expected.get("numa_nodes") or [], cpus, {name: ids for name, ids in devices.items() if ids})
        if (named(layout, admission.zones), admission.cpus, ours) != want:
            wrong.append((case.form.id, admission.uses, want))
    assert compared == 1310
    assert not wrong


def test_from_full_state_amounts_of_each_zone_are_the_kubelets(cases):
    wrong = []
    for case in cases:
        if not case.expected["admitted"] or "device-on-two-nodes" in case.form.tags:
            continue
        layout, state, pod = known(case)
        want = {}
        listed = {id_: d.numa for some in case.form.machine.devices.values() for d in some for id_ in [d.id]}
        held = {}
        for container in case.expected["containers"]:
            for resource, ids in (container.get("devices") or {}).items():
                held.setdefault(resource, set()).update(ids)
        for resource, ids in held.items():
            for id_ in ids:
                for zone in listed[id_]:
                    want[zone, resource] = want.get((zone, resource), 0) + 1
        cpus = 0
        for container in case.expected["containers"]:
            cpus |= cpu_mask(container.get("cpuset") or "")
        for zone in layout.zones:
            count = sum(cpus >> cpu & 1 for core in zone.cores for cpu in core)
            if count:
                want[zone.id, "cpu"] = 1000 * count
        uses = placement_of(layout, admit(layout, state, pod)).zones
        ours = {
            (use.zone, name): amount for use in uses for name, amount in use.amounts.items() if name in {"cpu", *held}
        }
        memory = sum(use.amounts.get("memory", 0) for use in uses)
        taken = sum(
            block["size"]
            for one in case.expected["containers"]
            for block in one.get("memory") or []
            if block["type"] == "memory"
        )
        if ours != want or memory != taken:
            wrong.append((case.form.id, ours, want, memory, taken))
    assert not wrong


def test_giving_back_what_a_pod_got_leaves_the_state_as_it_was(cases):
    checked = 0
    for case in cases:
        layout, state, pod = known(case)
        admission = admit(layout, state, pod)
        assert release(layout, admission.after, admission) == state, case.form.id
        checked += admission.admitted and admission.after != state
        layout, state = from_nrt(case.form.nrt)
        admission = admit(layout, state, pod)
        assert release(layout, admission.after, admission) == state, case.form.id
    assert checked > 1000


def test_a_placement_charges_what_the_admission_took(cases):
    """Amounts and memory groups are equal; CPUs and devices in number."""
    for case in cases:
        layout, state, pod = known(case)
        admission = admit(layout, state, pod)
        if not admission.admitted or "device-on-two-nodes" in case.form.tags:
            continue
        ids = {resource: tuple(device.id for device in some) for resource, some in case.form.machine.devices.items()}
        placement = placement_of(layout, admission, ids)
        charged = charge(layout, state, placement, 1, ids)
        assert charged.free == admission.after.free, case.form.id
        assert charge(layout, charged, placement, -1, ids).free == state.free, case.form.id


def test_from_amounts_alone_most_verdicts_hold(cases):
    """What is missed without options is mostly full-pcpus-only, which NodeResourceTopology does not tell."""
    plain = with_options = compared = 0
    for case in cases:
        if "node-level-overcommit" in case.form.tags:
            continue
        compared += 1
        pod = pod_shape(case.form.pod)
        plain += admit(*from_nrt(case.form.nrt), pod).admitted is case.expected["admitted"]
        options, threads = kubelet_of(case.form.kubelet), case.form.machine.threads_per_core
        told = from_nrt(case.form.nrt, options, threads)
        with_options += admit(*told, pod).admitted is case.expected["admitted"]
    assert compared == 1953
    assert with_options / compared >= 0.99
    assert plain / compared >= 0.966


def test_nothing_in_the_amounts_tells_that_whole_cores_are_handed_out(cases):
    """Odd numbers of CPUs on machines with nothing but even amounts: more are admitted than refused for it."""
    refused = admitted = 0
    for case in cases:
        zones = [zone.resources["cpu"] for zone in case.form.nrt.zones if "cpu" in zone.resources]
        amounts = [amount for zone in zones for amount in (zone.capacity, zone.allocatable - zone.available)]
        pod = pod_shape(case.form.pod)
        asked = [amount for container in pod.containers for name, amount in container.requests if name == "cpu"]
        if pod.qos != "Guaranteed" or any(amount % 2 for amount in amounts) or not any(a % 2000 == 1000 for a in asked):
            continue
        refused += case.expected.get("reason") == "SMTAlignmentError"
        admitted += case.expected["admitted"]
    assert refused > 45
    assert admitted > 3 * refused
