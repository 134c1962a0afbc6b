"""Where the API server is and how to authenticate: kubeconfig or in-cluster.

Credential plugins and identity providers that a kubeconfig may name are asked by kubernetes_asyncio, which is imported
only then: that costs 0.3 s and 38 MB, and tokens, passwords and certificates need none of it. Order: the ``kubeconfig``
argument, ``$KUBECONFIG`` (a list of files), in-cluster, ``~/.kube/config``.

Tokens: files are read again each minute, plugins and providers are asked again when what they gave expires, and all of
them at once after a 401.
"""

import asyncio
import base64
import contextlib
import json
import os
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from clock import SYSTEM, Clock
from kube.connection import kubeconfig as files
from kube.errors import ConfigError

if TYPE_CHECKING:
    from kubernetes_asyncio.config.kube_config import KubeConfigLoader

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# The kubelet renews a projected token well before it expires, so a minute late is in time.
TOKEN_SECONDS = 60.0


class Credentials(Protocol):
    """Something that knows the Authorization header."""

    def current_header(self) -> str | None:
        """The header, or None where it must be made afresh first."""

    async def refresh(self) -> None:
        """Make the header afresh."""


class Static:
    """A header that does not change: a token or password in the kubeconfig, or none (client certificate)."""

    def __init__(self, header: str = "") -> None:
        self._header = header

    def current_header(self) -> str | None:
        """The header; empty for none."""
        return self._header

    async def refresh(self) -> None:
        """Nothing to do."""


class TokenFile:
    """A bearer token in a file that somebody rotates, as the kubelet does."""

    def __init__(self, path: Path, clock: Clock = SYSTEM) -> None:
        self._path = path
        self._clock = clock
        self._read_at = float("-inf")
        self._header = ""

    def current_header(self) -> str | None:
        """The header; None when the file was last read over a minute ago."""
        return self._header if self._clock.monotonic() - self._read_at < TOKEN_SECONDS else None

    async def refresh(self) -> None:
        """Read the file; a token we have is kept while the file cannot be read or is empty (it is being replaced).

        Raises:
            ConfigError: there never was a token.
        """
        try:
            token = self._path.read_text(encoding="utf-8").strip()
        except OSError as error:
            token, why = "", error.strerror or str(error)
        else:
            why = "it is empty"
        if token:
            self._header = f"Bearer {token}"
        elif not self._header:
            raise ConfigError(f"token file {self._path}: {why}")
        # Also after a read that failed: while the file is gone it is tried once a minute, and not at every call.
        self._read_at = self._clock.monotonic()


class Plugin:
    """A credential plugin (``exec``) or identity provider of the kubeconfig, through kubernetes_asyncio's loader."""

    def __init__(self, loader: "KubeConfigLoader", header: str, clock: Clock = SYSTEM) -> None:
        self._loader = loader
        self._clock = clock
        self._header = header
        self._until = self._expiry()
        self._lock = asyncio.Lock()

    def current_header(self) -> str | None:
        """The header; None when it has expired."""
        return self._header if self._clock.now() < self._until else None

    async def refresh(self) -> None:
        """Ask again; calls that wait here together ask once.

        Raises:
            ConfigError: the plugin or provider failed.
        """
        # Remembered before the lock: the call that holds it may be asking for the very same token.
        before = self._header, self._until
        async with self._lock:
            if (self._header, self._until) != before:
                return
            vars(self._loader).pop("exec_plugin_expiry", None)  # else the loader keeps what it has
            try:
                await self._loader._load_authentication()  # noqa: SLF001 -- it has no public refresh
            except Exception as error:  # it raises whatever the plugin's failure led to
                raise ConfigError(f"credential plugin: {error}") from error
            self._header = getattr(self._loader, "token", self._header)
            self._until = self._expiry()

    def _expiry(self) -> float:
        expiry = getattr(self._loader, "exec_plugin_expiry", None)
        if expiry is not None:
            return float(expiry.timestamp())
        # Providers check the expiry of their token themselves: ask them each minute. A plugin that names no expiry
        # is asked again after a 401 only (as client-go does).
        return self._clock.now() + TOKEN_SECONDS if self._loader.provider else float("inf")


class Connection(msgspec.Struct):
    """What a Client needs. ``tls`` is None for plain http; ``credentials`` give the Authorization header."""

    url: str
    tls: ssl.SSLContext | None = None
    credentials: Credentials = msgspec.field(default_factory=Static)
    server_name: str | None = None
    proxy: str | None = None
    namespace: str = "default"


async def load(
    kubeconfig: str | os.PathLike[str] | None = None, context: str | None = None, clock: Clock = SYSTEM
) -> Connection:
    """The connection of a kubeconfig's context (default: its current one), or of the pod we run in.

    Raises:
        ConfigError: no configuration was found, or it cannot be used; the message says what and where.
    """
    if in_pod(kubeconfig, context):
        return await load_in_cluster(clock=clock)
    return await _load_kubeconfig(_files(kubeconfig), context, clock)


def in_pod(kubeconfig: str | os.PathLike[str] | None = None, context: str | None = None) -> bool:
    """Whether `load` takes the connection of the pod we run in: nobody named a kubeconfig or a context."""
    return not _kubeconfig_path(kubeconfig) and context is None and in_cluster()


def _kubeconfig_path(kubeconfig: str | os.PathLike[str] | None) -> str:
    return os.fspath(kubeconfig) if kubeconfig is not None else os.environ.get("KUBECONFIG", "")


def _files(kubeconfig: str | os.PathLike[str] | None) -> str:
    return _kubeconfig_path(kubeconfig) or str(Path.home() / ".kube" / "config")


class DescribedConnection(NamedTuple):
    """Which connection `load` takes, for a person. ``context`` and ``files`` are empty in a pod.

    ``account``: the service account (namespace/name) whose token its user has, "" for another user.
    """

    server: str
    context: str = ""
    files: str = ""
    user: str = ""
    account: str = ""


def described(kubeconfig: str | os.PathLike[str] | None = None, context: str | None = None) -> DescribedConnection:
    """Which server `load` would call, and by which context of which files; "?" for what they do not say.

    Raises:
        ConfigError: no file exists, or one is not a kubeconfig.
    """
    if in_pod(kubeconfig, context):
        return DescribedConnection(
            f"{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ.get('KUBERNETES_SERVICE_PORT', '443')}"
        )
    paths = _files(kubeconfig)
    merged = files.merge(paths)
    name = context or merged.get("current-context") or "?"
    chosen = files.body(merged, "contexts", name, "context")
    server = files.body(merged, "clusters", chosen.get("cluster"), "cluster").get("server", "?")
    account = _account(files.body(merged, "users", chosen.get("user"), "user").get("token"))
    return DescribedConnection(str(server), str(name), paths, str(chosen.get("user", "")), account)


def _account(token: object) -> str:
    """The service account (namespace/name) that a token says to be of; "" where it is none of one."""
    try:
        # The signature is not verified: this words a message for whoever holds the token, and decides nothing.
        payload = str(token).split(".")[1]
        # A JWT leaves out the padding that Python's decoder asks for.
        subject = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["sub"]
        system, kind, namespace, name = str(subject).split(":")
    except (IndexError, KeyError, TypeError, ValueError):
        return ""
    return f"{namespace}/{name}" if (system, kind) == ("system", "serviceaccount") else ""


def in_cluster() -> bool:
    """Whether we run in a pod with a service account."""
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST")) and (SERVICE_ACCOUNT / "token").exists()


async def load_in_cluster(folder: Path = SERVICE_ACCOUNT, clock: Clock = SYSTEM) -> Connection:
    """The connection by the files the kubelet mounts into every pod.

    Raises:
        ConfigError: the address is not in the environment, or a file is missing.
    """
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise ConfigError("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set: this is not a pod")
    credentials = TokenFile(folder / "token", clock)
    # Read at once: a pod without a token fails at its start with the name of the file, and not at its first call.
    await credentials.refresh()
    namespace = "default"
    with contextlib.suppress(OSError):
        namespace = (folder / "namespace").read_text(encoding="utf-8").strip() or namespace
    # In an IPv6 cluster the kubelet writes the bare address into the variable.
    address = f"[{host}]" if ":" in host else host
    return Connection(f"https://{address}:{port}", client_tls(folder / "ca.crt"), credentials, namespace=namespace)


def client_tls(
    ca: str | Path | None, certificate: str | None = None, key: str | None = None, *, verify: bool = True
) -> ssl.SSLContext:
    """A TLS context that trusts ``ca`` (None: what the system trusts) and shows a client certificate.

    Raises:
        ConfigError: a file is missing or not what it should be.
    """
    try:
        context = ssl.create_default_context(cafile=ca)
        if certificate:
            context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(f"{what} {path}" for what, path in (("certificate", certificate), ("key", key)) if path)
        trusted = f"CA {ca}" if ca else "the CAs of the system"
        raise ConfigError(f"TLS with {trusted}{', ' * bool(files)}{files}: {error}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if not verify:
        # In this order: Python refuses CERT_NONE for a context that still checks host names.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


async def _load_kubeconfig(paths: str, context: str | None, clock: Clock) -> Connection:
    merged = files.merge(paths)
    try:
        chosen = files.choose(merged, context)
        tls, credentials = (
            await _plugin_credentials(merged, context, clock) if chosen.asks else _from_files(chosen, clock)
        )
    except ConfigError as error:
        raise ConfigError(f"kubeconfig {paths}: {error}") from error
    server_name, proxy = chosen.text("tls-server-name"), chosen.text("proxy-url")
    return Connection(
        chosen.server, tls if chosen.encrypted else None, credentials, server_name, proxy, chosen.namespace
    )


def _from_files(chosen: files.ChosenContext, clock: Clock) -> tuple[ssl.SSLContext | None, Credentials]:
    """What the files say themselves."""
    tls = None
    if chosen.encrypted:
        with (
            chosen.file("certificate-authority") as ca,
            chosen.file("client-certificate") as certificate,
            chosen.file("client-key") as key,
        ):
            tls = client_tls(ca, certificate, key, verify=chosen.verify)
    if path := chosen.user.get("tokenFile"):  # as in client-go it wins over token
        return tls, TokenFile(Path(path), clock)
    return tls, Static(chosen.header)


async def _plugin_credentials(
    merged: dict[str, Any], context: str | None, clock: Clock
) -> tuple[ssl.SSLContext, Credentials]:
    """What the plugin or the provider says: a plugin may give a certificate too."""
    from kubernetes_asyncio.client import Configuration  # heavy, see the module's docstring
    from kubernetes_asyncio.config import kube_config

    made: Any = Configuration()
    try:
        loader = kube_config.KubeConfigLoader(merged, active_context=context or None, config_base_path="")
        await loader.load_and_set(made)
        tls = client_tls(made.ssl_ca_cert, made.cert_file, made.key_file, verify=made.verify_ssl)
    except ConfigError:
        raise
    except Exception as error:  # the loader raises whatever a wrong field led to
        raise ConfigError(str(error)) from error
    finally:
        kube_config._cleanup_temp_files()  # noqa: SLF001 -- it wrote client keys to /tmp until exit; ours are loaded
    return tls, Plugin(loader, made.api_key.get("BearerToken", "").strip(), clock)
