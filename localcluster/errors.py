"""What can go wrong with a local control plane.

``LocalClusterError``
    ``BinariesMissing``   a binary can be neither found nor built
    ``ComponentFailed``   a component died or did not become ready; carries the end of its log
    ``NotReady``          the cluster as a whole missed its deadline
    ``AlreadyUp``         the folder belongs to a cluster that runs
    ``KubeletsRefused``   real kubelets cannot run here; says why
"""


class LocalClusterError(Exception):
    """Base of all errors of this package; the message says what to do."""


class BinariesMissing(LocalClusterError):  # noqa: N818
    """A control-plane binary can be neither found nor built."""


class ComponentFailed(LocalClusterError):  # noqa: N818
    """A component ended by itself or did not become ready in time."""

    def __init__(self, component: str, what: str, log_tail: str) -> None:
        """``what`` completes the sentence "<component> ..."."""
        super().__init__(f"{component} {what}. The end of its log:\n{log_tail}")
        self.component = component


class NotReady(LocalClusterError):  # noqa: N818
    """The cluster did not become ready in time."""


class AlreadyUp(LocalClusterError):  # noqa: N818
    """The folder belongs to a cluster that runs."""


class KubeletsRefused(LocalClusterError):  # noqa: N818
    """Real kubelets cannot run on this system, or not with these names."""
