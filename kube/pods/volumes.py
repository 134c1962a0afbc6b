"""The claims that a pod names, or that are made for it."""

from typing import NamedTuple

from kube.objects import ClaimSpec, Pod, PodSpec
from kube.pods.limits import MOST_CLAIMS


class PodClaim(NamedTuple):
    """A claim of a pod. ``template``: what it is made of for this pod alone; None where it is one that others made."""

    name: str
    template: ClaimSpec | None = None


def claims_of(pod: Pod) -> list[PodClaim]:
    """The claims of a pod, each once; of more than `MOST_CLAIMS` the first ones."""
    return _claims(pod.spec, f"{pod.metadata.name}-") if pod.spec.volumes is not None else []


def claims_in(spec: PodSpec) -> list[PodClaim]:
    """The claims of the pods of a template: those of one pod alone have the name of its volume."""
    return _claims(spec, "") if spec.volumes is not None else []


def _claims(spec: PodSpec, prefix: str) -> list[PodClaim]:
    found: dict[tuple[str, bool], PodClaim] = {}  # by name, and whether it is made of a template
    for volume in (spec.volumes or ())[:MOST_CLAIMS]:
        if volume.persistent_volume_claim is not None:
            name = volume.persistent_volume_claim.claim_name
            found.setdefault((name, False), PodClaim(name))
        elif volume.ephemeral is not None:
            template = volume.ephemeral.volume_claim_template
            name = f"{prefix}{volume.name}"
            # A template's claim and a claim of that name are two.
            found[name, True] = PodClaim(name, template.spec if template is not None else ClaimSpec())
    return list(found.values())
