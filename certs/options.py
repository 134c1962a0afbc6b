"""Where certificates live and who shall trust them."""

import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from certs.authority import Lifetimes, service_hosts
from kube.resources import MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS, Resource

if TYPE_CHECKING:
    from crds.settings import Settings

CHECK_SECONDS = 5.0
# API servers watch their webhook configurations and usually need a second (docs/certificates.md).
SETTLE_SECONDS = 60.0

DEFAULT_LIFETIMES = Lifetimes()
_MAX_NAME = 63  # of an annotation, after the slash


class CertificateOptions(msgspec.Struct, frozen=True):
    """Times are in seconds.

    ``hosts``: DNS names and IP addresses of the serving certificate. ``mutating``, ``validating``: names of the webhook
    configurations that get the caBundle; one that does not exist is passed over. ``sign`` False: the Secret is made by
    cert-manager, and so is the caBundle. ``settle_seconds``: how long an API server may take to notice a changed
    caBundle, with room to spare. ``replica``: names this process among those that share the Secret; ``pod``,
    ``pod_uid``: the pod that it is, if it is one.
    """

    namespace: str
    secret: str
    hosts: tuple[str, ...]
    mutating: tuple[str, ...] = ()
    validating: tuple[str, ...] = ()
    lifetimes: Lifetimes = DEFAULT_LIFETIMES
    sign: bool = True
    check_seconds: float = CHECK_SECONDS
    settle_seconds: float = SETTLE_SECONDS
    replica: str = "this"
    pod: str = ""
    pod_uid: str = ""

    @classmethod
    def from_settings(
        cls, settings: "Settings", extra_hosts: Sequence[str] = (), env: Mapping[str, str] | None = None
    ) -> "CertificateOptions":
        """What the settings say; ``extra_hosts`` are further names of a webhook outside of the cluster.

        ``env``: has POD_NAME and POD_UID in a pod; by default this process's.
        """
        hosts = list(service_hosts(settings.webhook_service, settings.namespace))
        if settings.webhook_url and (host := urlsplit(settings.webhook_url).hostname):
            hosts.append(host)
        variables = os.environ if env is None else env
        pod, pod_uid = variables.get("POD_NAME", ""), variables.get("POD_UID", "")
        replica = pod_uid
        # A name without a UID does not tell this pod from a later one of the same name, so neither counts.
        if not (pod and pod_uid):
            pod = pod_uid = ""
            # A name that a process outside of a cluster has again when it is started again. Port 0 lets the kernel
            # choose, so it names no process.
            own = str(settings.webhook_port) if settings.webhook_port else f"pid{os.getpid()}"
            host = re.sub(r"[^A-Za-z0-9-]+", "-", socket.gethostname()).strip("-")
            replica = f"{host[: _MAX_NAME - len(own) - 1]}-{own}".lstrip("-")
        return cls(
            namespace=settings.namespace,
            secret=settings.webhook_secret,
            hosts=tuple(dict.fromkeys([*hosts, *extra_hosts])),
            mutating=(settings.webhook_configuration,),
            validating=(settings.webhook_configuration,),
            lifetimes=Lifetimes(
                ca=timedelta(days=settings.ca_days),
                leaf=timedelta(days=settings.certificate_days),
                renew_before=timedelta(days=settings.certificate_renew_days),
            ),
            sign=settings.certificate_source == "self-signed",
            check_seconds=settings.certificate_check_seconds,
            settle_seconds=settings.certificate_settle_seconds,
            replica=replica,
            pod=pod,
            pod_uid=pod_uid,
        )

    @property
    def where(self) -> str:
        """The Secret, for messages."""
        return f"Secret {self.namespace}/{self.secret}"

    @property
    def configurations(self) -> Iterator[tuple[Resource, str]]:
        """The webhook configurations."""
        yield from ((MUTATING_WEBHOOKS, name) for name in self.mutating)
        yield from ((VALIDATING_WEBHOOKS, name) for name in self.validating)
