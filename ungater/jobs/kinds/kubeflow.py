"""Kubeflow's training jobs (PyTorchJob, TFJob, XGBoostJob, JAXJob, MPIJob, ...): master, worker, ps, launcher."""

from ungater.jobs.kinds.rule import Rule

RULE = Rule(
    group="kubeflow.org",
    pod_set="training.kubeflow.org/replica-type",
    else_by="training.kubeflow.org/job-role",  # of the MPI operator, which knows no other
)
