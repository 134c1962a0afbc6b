"""Names of objects that Topogate makes: the same job always gives the same name, so a retry makes no second one."""

import hashlib

MAX_NAME = 63
_HASH_LENGTH = 10


def workload_name(kind: str, name: str, uid: str) -> str:
    """Name of the Workload of a job: ``<kind>-<name, shortened>-<10 hex of sha256(uid)>``, at most 63 characters.

    The hash is of the uid: a job that was deleted and made again under its old name gets a new Workload. The result is
    a DNS label, so dots of the job's name become dashes.
    """
    digest = hashlib.sha256(uid.encode()).hexdigest()[:_HASH_LENGTH]
    head = f"{kind}-{name}".lower().replace(".", "-")[: MAX_NAME - _HASH_LENGTH - 1].rstrip("-")
    return f"{head}-{digest}"
