"""Annotations that tell a device plugin which devices were chosen for a pod.

The kubelet asks plugins for devices on its own, so only a plugin that reads an annotation follows the choice.
Kunlunxin's reads the indexes of its cards (``BAIDU_COM_DEVICE_IDX: 0,1,2,3``), HAMi's reads the uuids of NVIDIA GPUs
(``nvidia.com/use-gpuuuid``); which resource has which annotation is a setting.

A card's index is the number that its id ends with, where the ids of a machine differ in nothing else and count from 0;
where they are PCI addresses, it is their place in order. Of other ids no index is known, and then nothing is written: a
wrong index is worse than none.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from crds.constants import XPU_INDEXES

XPU_RESOURCE = "kunlunxin.com/xpu"

_NUMBER = re.compile(r"0|[1-9][0-9]{0,3}")
_PCI = re.compile(r"([0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")


class AnnotationRule(Protocol):
    """What `crds.device_settings` says of one annotation: for devices of which resource, and what is written in it."""

    @property
    def resource(self) -> str:
        """Its devices' resource."""

    @property
    def key(self) -> str:
        """The annotation."""

    @property
    def value(self) -> str:
        """``index`` or ``id``."""


class IndexAnnotation(NamedTuple):
    """A rule that nobody had to set."""

    resource: str
    key: str
    value: str = "index"


DEFAULT = (IndexAnnotation(XPU_RESOURCE, XPU_INDEXES),)


def device_annotations(
    chosen: Mapping[str, Iterable[str]],
    known: Mapping[str, Sequence[str]],
    rules: Sequence[AnnotationRule] = DEFAULT,
) -> dict[str, str]:
    """The annotations of a pod that gets ``chosen``: ids by resource.

    ``known``: the ids of all devices of its machine, by resource. Indexes ascend; ids keep the order of the machine.
    """
    found: dict[str, str] = {}
    for rule in rules:
        ids = set(chosen.get(rule.resource, ()))
        everything = known.get(rule.resource, ())
        if not ids or not ids <= set(everything):
            continue
        if rule.value == "id":
            found[rule.key] = ",".join(name for name in everything if name in ids)
        elif indexes := indexes_of(everything):
            found[rule.key] = ",".join(str(index) for index in sorted(indexes[name] for name in ids))
    return found


def indexes_of(ids: Sequence[str]) -> dict[str, int]:
    """The index of each card of a machine by its id; {} where the ids do not tell."""
    stems = [name.rstrip("0123456789") for name in ids]
    numbers = [name[len(stem) :] for name, stem in zip(ids, stems, strict=True)]
    if len(set(stems)) == 1 and all(_NUMBER.fullmatch(number) for number in numbers):
        indexes = [int(number) for number in numbers]
        return dict(zip(ids, indexes, strict=True)) if sorted(indexes) == list(range(len(ids))) else {}
    if all(_PCI.fullmatch(name) for name in ids):
        # In either case of hexadecimal digits: some plugins write addresses in capitals.
        return {name: index for index, name in enumerate(sorted(ids, key=str.lower))}
    return {}
