"""The pod template of a Job or of a Workload's pod set, which both keep as it was sent."""

import msgspec

from kube.objects import Job, PodTemplate
from kube.workloads import PodSetCount

_decode = msgspec.json.Decoder(PodTemplate).decode


def template_of(owner: Job | PodSetCount) -> PodTemplate:
    """The typed template.

    Raises:
        msgspec.ValidationError: a field has the wrong type (the API server refuses such a Job).
    """
    return _decode(owner.spec.template if isinstance(owner, Job) else owner.template)
