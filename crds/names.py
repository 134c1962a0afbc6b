"""Names of objects that Topogate makes (the same job always gives the same name), of labels, and of resources."""

import base64
import hashlib
import re
from functools import lru_cache

MAX_NAME = 63
# 40 bits keep names apart by chance, and not against somebody who looks for two that are alike (`owner_digest`).
_HASH_LENGTH = 10
_LONGER_HASH = 26  # characters of 5 bits: nobody finds two that are alike
_MAX_KIND = 32

# A label key: optional DNS subdomain and slash, then a qualified name.
_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_LABEL_KEY = re.compile(rf"({_LABEL}(\.{_LABEL})*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?")
_MAX_PREFIX = 253
_OTHER = re.compile(r"[^a-z0-9]")
_OF_NODES = ("cpu", "memory", "pods", "storage", "ephemeral-storage")  # their amounts are not numbers of devices


def is_label_key(text: str) -> bool:
    """Whether Kubernetes takes the text as the key of a label."""
    # Without a prefix this is -1; the pattern alone does not bound the length of one.
    return text.find("/") <= _MAX_PREFIX and _LABEL_KEY.fullmatch(text) is not None


def is_label_value(text: str) -> bool:
    """Whether Kubernetes takes the text as the value of a label."""
    return len(text) <= 63 and re.fullmatch(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?", text) is not None


def is_object_name(text: str) -> bool:
    """Whether a cluster takes this as the name of an object (an RFC 1123 subdomain)."""
    return len(text) <= _MAX_PREFIX and re.fullmatch(rf"{_LABEL}(\.{_LABEL})*", text) is not None


def listed_names(text: str) -> list[str]:
    """The names in a list that commas separate, without the spaces around them."""
    return [name.strip() for name in text.split(",")] if text.strip() else []


def is_of_nodes(name: str) -> bool:
    """Whether a resource without a domain is one that Kubernetes itself knows, as requests of containers."""
    return name in _OF_NODES or name.startswith("hugepages-")


def workload_name(kind: str, name: str, apart: str) -> str:
    """Name of the Workload of a job: ``<kind>-<name, shortened>-<10 hex of sha256(apart)>``, at most 63 characters.

    ``apart`` tells its owner from all others: the uid, so that a job that was deleted and made again under its old name
    gets a new Workload; for pods of other controllers with their kind and group. The result is a DNS label, so dots of
    the job's name become dashes.
    """
    digest = hashlib.sha256(apart.encode()).hexdigest()[:_HASH_LENGTH]
    head = f"{kind_prefix(kind)}{_as_name(name)}"[: MAX_NAME - _HASH_LENGTH - 1].rstrip("-")
    return f"{head}-{digest}"


def longer_name(name: str, owner: str) -> str:
    """The name of a Workload whose usual name is another owner's: ``<kind>-<name, shortened>-<owner>``.

    ``owner``: an `owner_digest`. No usual name is like it, as that has a dash before its last 10 characters.
    """
    head = name.rpartition("-")[0][: MAX_NAME - _LONGER_HASH - 1].rstrip("-")
    return f"{head}-{owner}"


@lru_cache(maxsize=4096)  # asked for with each event of an owner
def owner_digest(owner: str, uid: str) -> str:
    """Tells an owner from all others, by its id (`JobView.id`) and uid: 130 bits of sha256, as letters and digits.

    10 hex characters do not: whoever writes the references of pods finds two uids that share them in a second.
    """
    digest = hashlib.sha256(f"{owner} {uid}".encode()).digest()
    return base64.b32encode(digest).decode()[:_LONGER_HASH].lower()


def kind_prefix(kind: str) -> str:
    """How the names of the Workloads of a kind begin. Whoever makes a pod writes what he likes for its owner's kind."""
    return f"{_as_name(kind)[:_MAX_KIND].strip('-') or 'pods'}-"


def _as_name(text: str) -> str:
    return _OTHER.sub("-", text.lower())
