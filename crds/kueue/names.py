"""How Kueue names its Workloads (0.19.2, pkg/controller/jobframework/workload_names.go)."""

import hashlib
from typing import Final

_LONGEST: Final = 253  # longMaxWorkloadNameLength; 63 with the feature gate ShortWorkloadNames, which is off by default
_HASH_LENGTH: Final = 5


def kueue_workload_name(kind: str, api_version: str, name: str, uid: str, extra: str = "") -> str:
    """The name that Kueue gives to the Workload of a job: ``<kind>-<name, shortened>-<5 hex of sha1>``.

    ``extra``: tells it from other Workloads of the job. Kueue takes any name: it finds them by their controlling owner.
    """
    # Kueue leaves the version out, so that a job keeps its name when its API moves on.
    group = api_version.rpartition("/")[0]
    apart = "\n".join(filter(None, (f"{kind}\n{group}\n{name}\n{uid}", extra)))
    digest = hashlib.sha1(apart.encode(), usedforsecurity=False).hexdigest()
    return f"{f'{kind.lower()}-{name}'[: _LONGEST - 1 - _HASH_LENGTH]}-{digest[:_HASH_LENGTH]}"
