"""What the kubelet of a node says to the first pod that it would not take: the words of the pod's status."""

from typing import Final

from engine.kubelet.device_manager import GPU_LINK, XPU_ALLOCATION, never_given
from engine.kubelet.disagreement import disagreement
from engine.kubelet.machine import Machine, PodShape, State
from engine.kubelet.numa_policy import NUMA_POLICY, refused_unseen
from engine.kubelet.rebuild import asked
from engine.kubelet.slow_hint_merge import A_SECOND, stalls

OURS: Final = (GPU_LINK, XPU_ALLOCATION, NUMA_POLICY)  # refusals of which the message says more than the reason
_MOST_PODS: Final = 1 << 12  # that are tried one after another


def kubelet_refusal(
    node: str,
    machine: Machine | None,
    state: State | None,
    shape: PodShape,
    *,
    xpus: tuple[str, ...] = (),
) -> str:
    """The text for pods of a shape that come one after another; "" where that is not known.

    ``machine`` and ``state``: what is inside the node, and what is left there; None where that is not known.
    ``xpus``: resources that are given by the rules of XPUs, on every node.
    """
    refused = never_given(shape, xpus)
    if refused is not None or state is None or machine is None:
        refused = refused or refused_unseen(shape)
        return f"{node}: {refused.reason}: {refused.message}" if refused is not None else ""
    combinations = stalls(machine.layout, shape)
    if combinations:
        minutes = combinations // (60 * A_SECOND)
        return f"{node}: its kubelet would compare {combinations:,} combinations of hints, for about {minutes} minutes"
    # The first pods may well be granted: the words are about the one with which the node is full.
    for _ in range(_MOST_PODS):
        admission = asked(machine.layout, state, shape)
        if not admission.admitted:
            told = f"{node}: {admission.reason}"
            more = admission.message if admission.reason in OURS else disagreement(machine.layout, state, shape)
            return f"{told}: {more}" if more else told
        state = admission.after
    return ""
