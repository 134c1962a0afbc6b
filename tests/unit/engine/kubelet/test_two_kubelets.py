"""The prediction beside the simulated kubelet of `localcluster`, which was written apart from it.

On recorded machines, pods of other records come and go; after each, both must say and hold the same.
"""

import json
import random
from dataclasses import replace

import msgspec
import pytest
from support.kubelets import cases, make_pod, replay

from cli.whatif.admit import AdmitForm
from cli.whatif.machines import from_state, pod_shape
from engine.kubelet.admit import admit
from engine.kubelet.charge import release

HUGE = "hugepages-1Gi"


def with_huge_pages(pod):
    return any(HUGE in (container.get("requests") or {}) for container in pod["containers"])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", range(4))
def test_both_kubelets_say_the_same_as_pods_come_and_go(part):
    recorded = cases()
    dice = random.Random(part)
    asked = admitted = removed = 0
    for case in dice.sample(recorded, 60):
        form = msgspec.json.decode(json.dumps(case), type=AdmitForm)
        simulated = replay(case)
        layout, state = from_state(form.machine, form.kubelet, form.state)
        live = []
        for turn in range(8):
            if live and dice.random() < 0.3:
                uid, admission = live.pop(dice.randrange(len(live)))
                simulated.remove(uid)
                state = release(layout, state, admission)
                removed += 1
                continue
            other = dice.choice(recorded)["pod"]
            if with_huge_pages(other) and HUGE not in layout.resources:
                continue  # the plain resource fit stops it, and a kubelet never sees it
            pod = replace(make_pod(other), uid=f"turn-{turn}")
            shape = pod_shape(msgspec.json.decode(json.dumps(case | {"pod": other}), type=AdmitForm).pod)
            verdict, admission = simulated.admit_pod(pod), admit(layout, state, shape)
            said = (verdict.refusal.reason, verdict.refusal.message) if verdict.refusal else ("", "")
            where = (case["id"], turn)
            assert (where, admission.reason, admission.message) == (where, *said)
            theirs = [(step.container, step.merged, step.preferred, step.admit) for step in verdict.steps or ()]
            assert (where, list(map(tuple, admission.steps))) == (where, theirs)
            asked += 1
            if not admission.admitted:
                simulated.remove(pod.uid)
                continue
            held = 0
            for container in simulated.held_by_container(pod.uid).values():
                held |= container.cpus
            assert (where, admission.cpus) == (where, held)
            live.append((pod.uid, admission))
            state = admission.after
            admitted += 1
    assert asked > 200
    assert admitted > 100
    assert removed > 20
