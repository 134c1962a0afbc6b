"""A Job with a request is sent to the API server in a dry run: whether the webhook answers, and does what it is for."""

from typing import NamedTuple

from crds.constants import Keys
from kube.client import Client
from kube.errors import ApiError, KubeError, ServerError
from kube.resources import JOBS

TRIED_IN, NAME = "default", "topogate-doctor"
OURS = "job.topogate.dev"


class TrialResult(NamedTuple):
    """What came of it. ``wrong``: why such Jobs are refused or not gated; ``unknown``: why that is not known."""

    wrong: str = ""
    unknown: str = ""


FINE = TrialResult()


async def try_webhook(client: Client, domain: str, namespace: str) -> TrialResult:
    """Create a Job in a namespace, in a dry run."""
    keys = Keys(domain)
    container = {"name": "c", "image": "none", "resources": {"requests": {"cpu": "1m"}}}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": NAME, "annotations": {keys.unconstrained: "true"}},
        "spec": {"suspend": True, "template": {"spec": {"restartPolicy": "Never", "containers": [container]}}},
    }
    try:
        made = await client.create(JOBS, job, namespace, dry_run=True)
    except ServerError as error:
        return TrialResult(wrong=f"a Job with a request is refused: {error}")
    except ApiError as error:
        # A refusal of the webhook's own, as without a queue where the settings ask for one: it answers.
        return FINE if f'"{OURS}" denied' in str(error) else TrialResult(unknown=f"no Job could be tried: {error}")
    except KubeError as error:
        return TrialResult(unknown=f"no Job could be tried: {error}")
    # The answer of a dry run has all that webhooks changed.
    gates = made["spec"]["template"]["spec"].get("schedulingGates") or ()
    if any(gate["name"] == keys.gate for gate in gates):
        return FINE
    return TrialResult(wrong=f"a Job with a request in namespace {namespace} gets no gate, so its pods are refused")
