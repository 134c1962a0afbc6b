"""How Kueue names its Workloads (0.19.2, pkg/controller/jobframework/workload_names.go)."""

import hashlib
from typing import Final

_LONGEST: Final = 253  # longMaxWorkloadNameLength; 63 with the feature gate ShortWorkloadNames, which is off by default
_HASH_LENGTH: Final = 5


def kueue_workload_name(kind: str, api_version: str, name: str, uid: str) -> str:
    """The name that Kueue gives to the Workload of a job: ``<kind>-<name, shortened>-<5 hex of sha1>``.

    A Workload with another name serves it as well: it finds the Workloads of a job by their controlling owner.
    """
    group = api_version.rpartition("/")[0]
    digest = hashlib.sha1(f"{kind}\n{group}\n{name}\n{uid}".encode(), usedforsecurity=False).hexdigest()
    return f"{f'{kind.lower()}-{name}'[: _LONGEST - 1 - _HASH_LENGTH]}-{digest[:_HASH_LENGTH]}"
