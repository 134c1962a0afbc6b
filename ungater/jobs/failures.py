"""Whether the end of a pod of a Job may be left to the Job controller to count, where the pod is evicted.

Rules (source: ``pkg/controller/job`` of Kubernetes 1.37)
- With ``podReplacementPolicy: TerminatingOrFailed`` a pod counts as failed as soon as it is told to end.
- With ``Failed`` it counts by how it ends, and is replaced only then. One that succeeds within its grace period is
  finished work: it counts as long as the controller's finalizer is on it, and else it is done again.
- One that fails then counts as a failure, unless a rule of ``podFailurePolicy`` that ignores disruptions comes first.
  Where there is no policy that could end the Job, a failure does no harm as long as all its pods together could not
  use up ``backoffLimit``: the finalizer of a pod that failed is taken off (`ungater.writers.evictor`), which the
  controller may forestall now and then.
"""

from typing import Final

from kube.objects import Job

_FAILED: Final = "Failed"
_IGNORE: Final = "Ignore"
_DISRUPTED: Final = "DisruptionTarget"  # the condition that the Eviction API writes
# As the API server defaults it (pkg/apis/batch/v1/defaults.go).
_BACKOFF_LIMIT: Final = 6  # where nothing is said


def counts_by_its_end(job: Job) -> bool:
    """Whether a pod of this Job that is evicted keeps the finalizer with which the Job controller counts it."""
    spec, status = job.spec, job.status
    if spec.pod_replacement_policy != _FAILED:
        return False
    if spec.pod_failure_policy is not None:
        # No rule but such as ignore may come before the one that ignores disruptions.
        for rule in spec.pod_failure_policy.rules or ():
            if rule.action != _IGNORE:
                return False
            if any(one.type == _DISRUPTED and one.status == "True" for one in rule.on_pod_conditions or ()):
                return True
        return False
    # Each index has a limit of its own there, which one failure may use up.
    if spec.backoff_limit_per_index is not None:
        return False
    uncounted = status.uncounted_terminated_pods
    failed = status.failed + (len(uncounted.failed or ()) if uncounted is not None else 0)
    # All of them may fail at once, and the controller may count each before its finalizer goes.
    running = max(1 if spec.parallelism is None else spec.parallelism, status.active + (status.terminating or 0))
    return failed + running <= (_BACKOFF_LIMIT if spec.backoff_limit is None else spec.backoff_limit)
