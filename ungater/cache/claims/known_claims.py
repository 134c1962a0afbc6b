"""ResourceClaims as they are now: what they ask for, whether they have devices, and who may have those too."""

from functools import lru_cache
from sys import intern
from typing import Final

import msgspec

from engine.claims.read.asks import text_of
from engine.model import NodeTerm
from kube.objects import Pod, PodSpec
from kube.pods import convert
from kube.pods.devices import ResourceClaim

MOST_USERS: Final = 256  # pods that a claim is for at one time (resource.k8s.io, ResourceClaimReservedForMaxSize)


class KnownClaim(msgspec.Struct, frozen=True):
    """A claim: ``text`` is what it asks for (`text_of`).

    ``nodes``: where its devices are reached from, None for everywhere; ``users``: uids of those that it is reserved
    for; ``made_for``: the pod that owns it.
    """

    text: str
    allocated: bool
    nodes: tuple[NodeTerm, ...] | None
    users: frozenset[str]
    leaving: bool
    made_for: str

    @classmethod
    def from_claim(cls, found: ResourceClaim) -> "KnownClaim":
        """A claim as the API server has it."""
        allocation, owners = found.status.allocation, found.metadata.owner_references
        selector = allocation.node_selector if allocation is not None else None
        users = found.status.reserved_for or ()
        return cls(
            text=intern(text_of(found.spec or {})),  # many claims are alike
            allocated=allocation is not None,
            nodes=_same(convert.node_terms(selector)) if selector is not None else None,
            users=frozenset([one.uid for one in users]),
            leaving=found.metadata.deletion_timestamp is not None,
            made_for=next((one.name for one in owners if one.kind == "Pod"), ""),
        )

    def why_barred(self, name: str) -> str:
        """Why no pod that names it can have it; "" where one can."""
        if self.leaving:
            return f'ResourceClaim "{name}" is being deleted'
        if self.made_for and not self.allocated:
            return f'ResourceClaim "{name}" is made for pod {self.made_for}, and has no devices yet'
        return ""

    def is_equivalent(self, other: "KnownClaim | None") -> bool:
        """Whether they are the same to all but those that wait for a place among the users."""
        return other is not None and (self.text, self.allocated, self.nodes, self.why_barred("")) == (
            *(other.text, other.allocated, other.nodes),
            other.why_barred(""),
        )


@lru_cache(maxsize=1024)
def _same(terms: tuple[NodeTerm, ...]) -> tuple[NodeTerm, ...]:
    """One object for terms that are alike: those of a node's devices all are."""
    return terms


def claims_named(pod: Pod) -> tuple[str, ...]:
    """The keys of the ResourceClaims that a pod names itself."""
    return named_by(pod.metadata.namespace, pod.spec) if pod.spec.resource_claims else ()


def named_by(namespace: str, spec: PodSpec) -> tuple[str, ...]:
    """The same of pods of this spec."""
    names = [one.resource_claim_name for one in spec.resource_claims or () if not one.resource_claim_template_name]
    return tuple(dict.fromkeys([f"{namespace}/{name}" for name in names if name]))
