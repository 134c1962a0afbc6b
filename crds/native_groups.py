"""The level that a PodGroup of Kubernetes itself names, beside the request of our own annotations. Pure.

Rules
- A native group asks for a level by its node label (``schedulingConstraints.topology[].key``), and always requires it.
- Where our annotations ask for no level, or for the same one, the group's holds, and is required.
- Where they ask for another, both are named and the request is refused: kube-scheduler keeps to the group, and would
  find no node for pods that we sent elsewhere.
"""

from msgspec.structs import replace

from crds.request import ParsedRequest, RequestError
from engine.model import Policy
from engine.reasons import Reason

JOB_SCHEDULING = "spec.scheduling"  # where a Job says what its PodGroup is to say
LEVEL_PATH = "schedulingConstraints.topology[0].key"


def agreed(request: ParsedRequest | None, level: str, path: str) -> ParsedRequest:
    """What holds of a request, its names read as label keys, and the ``level`` that a group at ``path`` names.

    Raises RequestError (ContradictingRequests) that names both.
    """
    field = f"{path}.{LEVEL_PATH}"
    if request is None:
        return ParsedRequest(Policy.REQUIRED, level, field)
    # The rest of the request stays: slices are then made within the group's level.
    if request.level is None:
        return replace(request, policy=Policy.REQUIRED, level=level, field=field, written=None)
    if request.level != level:
        said = f'{request.field}: "{request.as_written.level}"'
        text = f'{said} contradicts {field}: "{level}": keep one of the two'
        raise RequestError(Reason.CONTRADICTING_REQUESTS, request.field, request.level, text)
    if request.policy is Policy.REQUIRED:
        return request
    return replace(request, policy=Policy.REQUIRED, field=field, written=None)
