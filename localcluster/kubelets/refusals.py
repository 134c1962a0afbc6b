"""Why a pod is not admitted, in the kubelet's words."""

from dataclasses import dataclass
from typing import Self

TOPOLOGY_AFFINITY = "TopologyAffinityError"
SMT_ALIGNMENT = "SMTAlignmentError"
UNEXPECTED = "UnexpectedAdmissionError"


@dataclass(frozen=True)
class AdmissionRefusal:
    """Reason and message of a pod that fails at admission."""

    reason: str
    message: str

    @classmethod
    def unaligned(cls) -> Self:
        """The Topology Manager's policy does not admit."""
        return cls(TOPOLOGY_AFFINITY, "Resources cannot be allocated with Topology locality")

    @classmethod
    def unexpected(cls, what: str) -> Self:
        """A manager could not allocate."""
        return cls(UNEXPECTED, f"Allocate failed due to {what}, which is unexpected")

    @classmethod
    def odd_threads(cls, wanted: int, threads: int) -> Self:
        """With full-pcpus-only: no whole number of cores."""
        return cls(
            SMT_ALIGNMENT, f"SMT Alignment Error: requested {wanted} cpus not multiple cpus per core = {threads}"
        )

    @classmethod
    def too_few_cores(cls, wanted: int, threads: int, available: int) -> Self:
        """With full-pcpus-only: not that many cores are whole."""
        return cls(
            SMT_ALIGNMENT,
            f"SMT Alignment Error: not enough free physical CPUs: available physical CPUs = {available}, "
            f"requested CPUs = {wanted}, CPUs per core = {threads}",
        )


class NotAdmitted(Exception):  # noqa: N818
    """A manager refuses while it allocates."""

    def __init__(self, refusal: AdmissionRefusal) -> None:
        """``refusal`` is what the pod's status will say."""
        super().__init__(refusal.message)
        self.refusal = refusal
