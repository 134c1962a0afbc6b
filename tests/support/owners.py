"""One object of each kind of owner that makes pods of a template, small and whole, and where its templates stand."""

POD = {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}]}


def _template(**metadata):
    return {"metadata": metadata, "spec": POD} if metadata else {"spec": POD}


def _owner(api_version, kind, spec):
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "o", "namespace": "ns"}, "spec": spec}


def _service(kind):
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "o"}}, "template": _template(labels={"app": "o"})}
    return _owner("apps/v1", kind, spec if kind == "Deployment" else {**spec, "serviceName": "o"})


def _kubeflow(kind, field, *roles):
    replicas = {role: {"replicas": 1, "template": _template()} for role in roles}
    return _owner("kubeflow.org/v1", kind, {field: replicas})


_RAY = {
    "headGroupSpec": {"rayStartParams": {}, "template": _template()},
    "workerGroupSpecs": [
        {"groupName": "small", "replicas": 2, "template": _template()},
        {"groupName": "large", "replicas": 1, "template": _template(labels={"app": "o"})},
    ],
}
_LEADERS = {"size": 3, "leaderTemplate": _template(), "workerTemplate": _template(labels={"app": "o"})}
_WRAPPED = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "wrapped"},
    "spec": {"template": {"spec": {**POD, "restartPolicy": "Never"}}},
}

OWNER_OBJECTS = {
    "Deployment": _service("Deployment"),
    "StatefulSet": _service("StatefulSet"),
    "LeaderWorkerSet": _owner(
        "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", {"replicas": 2, "leaderWorkerTemplate": _LEADERS}
    ),
    "RayCluster": _owner("ray.io/v1", "RayCluster", _RAY),
    "RayJob": _owner("ray.io/v1", "RayJob", {"entrypoint": "python x.py", "rayClusterSpec": _RAY}),
    "RayService": _owner("ray.io/v1", "RayService", {"rayClusterConfig": _RAY}),
    "PyTorchJob": _kubeflow("PyTorchJob", "pytorchReplicaSpecs", "Master", "Worker"),
    "TFJob": _kubeflow("TFJob", "tfReplicaSpecs", "PS", "Worker"),
    "XGBoostJob": _kubeflow("XGBoostJob", "xgbReplicaSpecs", "Master", "Worker"),
    "JAXJob": _kubeflow("JAXJob", "jaxReplicaSpecs", "Worker"),
    "PaddleJob": _kubeflow("PaddleJob", "paddleReplicaSpecs", "Worker"),
    "MPIJob": _kubeflow("MPIJob", "mpiReplicaSpecs", "Launcher", "Worker"),
    "SparkApplication": _owner(
        "sparkoperator.k8s.io/v1beta2",
        "SparkApplication",
        {"mode": "cluster", "driver": {"cores": 1}, "executor": {"cores": 1, "instances": 2, "labels": {"app": "o"}}},
    ),
    "AppWrapper": _owner("workload.codeflare.dev/v1beta2", "AppWrapper", {"components": [{"template": _WRAPPED}]}),
    "TrainJob": _owner("trainer.kubeflow.org/v1alpha1", "TrainJob", {"runtimeRef": {"name": "torch-distributed"}}),
}

_IN_RAY = ("headGroupSpec/template", "workerGroupSpecs/0/template", "workerGroupSpecs/1/template")
POINTERS = {
    "Deployment": ("/spec/template",),
    "StatefulSet": ("/spec/template",),
    "LeaderWorkerSet": ("/spec/leaderWorkerTemplate/leaderTemplate", "/spec/leaderWorkerTemplate/workerTemplate"),
    "RayCluster": tuple(f"/spec/{path}" for path in _IN_RAY),
    "RayJob": tuple(f"/spec/rayClusterSpec/{path}" for path in _IN_RAY),
    "RayService": tuple(f"/spec/rayClusterConfig/{path}" for path in _IN_RAY),
    "PyTorchJob": tuple(f"/spec/pytorchReplicaSpecs/{role}/template" for role in ("Master", "Worker")),
    "TFJob": tuple(f"/spec/tfReplicaSpecs/{role}/template" for role in ("PS", "Worker")),
    "XGBoostJob": tuple(f"/spec/xgbReplicaSpecs/{role}/template" for role in ("Master", "Worker")),
    "JAXJob": ("/spec/jaxReplicaSpecs/Worker/template",),
    "PaddleJob": ("/spec/paddleReplicaSpecs/Worker/template",),
    "MPIJob": tuple(f"/spec/mpiReplicaSpecs/{role}/template" for role in ("Launcher", "Worker")),
    "SparkApplication": ("/spec/driver", "/spec/executor"),
    "AppWrapper": ("/spec/components/0/template",),
    "TrainJob": ("/spec",),
}
