"""Kueue's objects as small dicts, and what becomes of them."""

from cli.cluster.dump import FoundObject
from cli.migrate.migration import migrate_objects
from cli.migrate.source_objects import KueueObjectsRead

GROUP = "kueue.x-k8s.io"


def of_kueue(kind, name, spec=None, *, version="v1beta2", namespace="", **more):
    """One object; ``more``: fields beside spec, such as value, and metadata (annotations=...)."""
    meta = {"name": name} | ({"namespace": namespace} if namespace else {}) | more.pop("meta", {})
    body = {"apiVersion": f"{GROUP}/{version}", "kind": kind, "metadata": meta, **more}
    return body if spec is None else body | {"spec": spec}


def group(*amounts, resource="cpu", **limits):
    """A resource group of one resource; its flavors f0, f1, ... have these amounts."""
    flavors = [
        {"name": f"f{at}", "resources": [{"name": resource, "nominalQuota": amount, **limits}]}
        for at, amount in enumerate(amounts)
    ]
    return {"coveredResources": [resource], "flavors": flavors}


def found(*bodies):
    return [FoundObject("file.yaml", b"", at, None, body, body["kind"]) for at, body in enumerate(bodies)]


def migrated(*bodies, without=()):
    """The report of these objects."""
    return migrate_objects(KueueObjectsRead(found(*bodies), []), without)


def rows_of(report, kind=None):
    """(field, outcome) -> why, of all rows with a field (of a kind)."""
    return {(row.field, row.outcome): row.why for row in report.rows if row.field and kind in {None, row.kind}}


def outcome_of(report, kind, name):
    """What became of an object."""
    (row,) = [one for one in report.rows if (one.kind, one.name, one.field) == (kind, name, "")]
    return row.outcome


def made_of(report, kind, name):
    """The object of ours; None where nothing was made."""
    return next((one for one in report.objects if (one["kind"], one["metadata"]["name"]) == (kind, name)), None)


def configuration(version="v1beta2", **parts):
    return {"apiVersion": f"config.{GROUP}/{version}", "kind": "Configuration", **parts}
