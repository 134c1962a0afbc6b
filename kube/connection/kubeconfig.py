"""Kubeconfig files: several as one, and what one context of them says. Nothing is asked of anybody here."""

import base64
import binascii
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from kube.errors import ConfigError

_PATH_FIELDS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
_ASKING = ("exec", "auth-provider")  # users whose credentials somebody else gives


def merge(paths: str) -> dict[str, Any]:
    """The files of a ``:``-separated list as one configuration, by kubectl's rules.

    The first file that names a cluster, user or context, or sets the current context, wins; relative paths in a file
    are relative to that file. Files that do not exist are passed over, as long as one exists.

    Raises:
        ConfigError: no file exists, or one is not a kubeconfig.
    """
    found = [path for path in (Path(entry).expanduser() for entry in paths.split(os.pathsep) if entry) if path.exists()]
    if not found:
        raise ConfigError(f"kubeconfig {paths}: no such file; pass one, or set KUBECONFIG")
    merged: dict[str, Any] = {"clusters": [], "users": [], "contexts": []}
    for path in found:
        _merge_file(merged, path)
    return merged


def body(merged: dict[str, Any], section: str, name: object, key: str) -> dict[str, Any]:
    """What a section says of a name; {} where it does not."""
    entry: dict[str, Any] = next((one for one in merged[section] if one["name"] == name), {})
    found = entry.get(key) or {}
    return found if isinstance(found, dict) else {}


class ChosenContext(msgspec.Struct, frozen=True):
    """One context. ``cluster`` and ``user`` are as the file has them, but for absolute paths."""

    cluster: dict[str, Any]
    user: dict[str, Any]
    namespace: str

    @property
    def asks(self) -> bool:
        """Whether a plugin or an identity provider gives the credentials."""
        return any(name in self.user for name in _ASKING)

    @property
    def server(self) -> str:
        """The URL."""
        return str(self.cluster["server"]).rstrip("/")

    @property
    def encrypted(self) -> bool:
        """Whether the server is called by TLS."""
        return self.server.startswith("https")

    @property
    def verify(self) -> bool:
        """Whether the server's certificate is looked at."""
        return not self.cluster.get("insecure-skip-tls-verify")

    @property
    def header(self) -> str:
        """The Authorization header that the user's fields make; "" for none."""
        if token := str(self.user.get("token") or "").strip():
            return f"Bearer {token}"
        if (name := self.user.get("username")) and (password := self.user.get("password")):
            return f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}"
        return ""

    def text(self, name: str) -> str | None:
        """A field of the cluster; None where it is not there."""
        return str(value) if (value := self.cluster.get(name)) else None

    @contextmanager
    def file(self, name: str) -> Iterator[str | None]:
        """A file with what ``<name>-data`` or else ``<name>`` of cluster or user says, while the block runs.

        Raises ConfigError where that is not base64.
        """
        fields = self.cluster if name in self.cluster or f"{name}-data" in self.cluster else self.user
        data = fields.get(f"{name}-data")
        if not data:
            yield fields.get(name) or None
            return
        with tempfile.NamedTemporaryFile() as file:  # its owner's alone; ssl reads keys from files only
            try:
                file.write(base64.b64decode(data))
            except (binascii.Error, TypeError, ValueError) as error:
                raise ConfigError(f"{name}-data: {error}") from error
            # The ssl module opens the path by itself, so the bytes must be in the file and not in Python's buffer.
            file.flush()
            yield file.name


def choose(merged: dict[str, Any], context: str | None) -> ChosenContext:
    """The context, by default the current one. Raises ConfigError where it does not say where the server is."""
    known = [one["name"] for one in merged["contexts"]]
    name = context or merged.get("current-context")
    if not name:
        raise ConfigError("it has no current-context: name a context")
    if name not in known:
        raise ConfigError(f"there is no context {name}; there are {', '.join(known) or 'none'}")
    found = body(merged, "contexts", name, "context")
    cluster = body(merged, "clusters", found.get("cluster"), "cluster")
    if not cluster.get("server"):
        raise ConfigError(f"context {name}: there is no cluster {found.get('cluster')} with a server")
    user = body(merged, "users", found.get("user"), "user")
    return ChosenContext(cluster, user, str(found.get("namespace") or "default"))


def _merge_file(merged: dict[str, Any], path: Path) -> None:
    import yaml  # only here: a process in a cluster does without

    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"kubeconfig {path}: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"kubeconfig {path}: expected a map with clusters, users and contexts")
    for section in ("clusters", "users", "contexts"):
        # Names of the files before this one: of two entries in one file `body` takes the first.
        known = {entry["name"] for entry in merged[section]}
        for entry in config.get(section) or []:
            if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
                raise ConfigError(f"kubeconfig {path}: an entry of {section} has no name")
            if entry["name"] not in known:
                merged[section].append(_resolve(entry, path.parent))
    if config.get("current-context"):
        merged.setdefault("current-context", config["current-context"])


def _resolve(entry: dict[str, Any], folder: Path) -> dict[str, Any]:
    body_key = next((key for key in ("cluster", "user", "context") if isinstance(entry.get(key), dict)), None)
    if body_key is None:
        return entry
    body = dict(entry[body_key])
    for name in _PATH_FIELDS:
        if body.get(name):
            body[name] = str((folder / body[name]).absolute())
    # A command without a slash is found in PATH, so it does not belong to the folder of this file.
    if isinstance(body.get("exec"), dict) and "/" in (command := str(body["exec"].get("command", ""))):
        body["exec"] = {**body["exec"], "command": str((folder / command).absolute())}
    return {**entry, body_key: body}
