"""Which level a request means, and whether any flavor has it. Pure, like `crds.request`.

Rules
- A ResourceFlavor may give its levels names (``spec.topology.names``), as in ``require-topology: rack``.
- A name means one level among the flavors of the job's queue (`LevelNames.from_flavors`), and without a queue, or where
  that has no flavor with this name, one level in the whole cluster; whichever flavor the pods then go to.
- A text that is a level of some flavor is that level, whatever else is called so.
- A name that these flavors give to different levels means none of them: `check_level` refuses it and names them all.
- What a name meant it goes on to mean where the flavor that said so is gone, for as long as this object lives.
- The Workload and the annotations keep what was written. What is decided on is `with_label_keys`.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Self, TypeAlias

import msgspec
from msgspec.structs import replace

from crds.request import AUTO, ParsedRequest, RequestError, level_in, quoted
from crds.spelling import meant
from engine.model import Policy, ShareLimits, SliceLayer
from engine.reasons import Reason

Name: TypeAlias = str
Level: TypeAlias = str
Flavor: TypeAlias = str
_NO_NAMES: Mapping[Name, Level] = {}
_NO_MEANING: Mapping[Name, tuple[Level, ...]] = {}


class LevelNames:
    """What the flavors call their levels; changes as flavors come and go."""

    def __init__(self, meaning: Mapping[Name, tuple[Level, ...]] = _NO_MEANING) -> None:
        self._levels: dict[Flavor, tuple[Level, ...]] = {}
        self._names: dict[Flavor, Mapping[Name, Level]] = {}
        self._meaning = dict(meaning)  # also what flavors said that are gone
        self._within: dict[frozenset[Flavor], LevelNames] = {}

    @classmethod
    def read(cls, flavors: Iterable[tuple[Flavor, Sequence[Level], Mapping[Name, Level] | None]]) -> Self:
        """Those of flavors with these levels and names."""
        found = cls()
        for flavor, levels, names in flavors:
            found.set(flavor, levels, names)
        return found

    def set(self, flavor: Flavor, levels: Sequence[Level], names: Mapping[Name, Level] | None) -> bool:
        """A flavor is there. Whether any name means something else now."""
        self._levels[flavor] = tuple(levels)
        self._names[flavor] = names or _NO_NAMES
        return self._read()

    def remove(self, flavor: Flavor) -> bool:
        """A flavor is gone, or has no topology. Whether any name means something else now."""
        self._levels.pop(flavor, None)
        self._names.pop(flavor, None)
        return self._read()

    @property
    def ambiguous(self) -> tuple[Name, ...]:
        """The names that flavors give to different levels."""
        return tuple(sorted(name for name, meant in self._meaning.items() if len(meant) > 1))

    def from_flavors(self, flavors: Iterable[Flavor]) -> "LevelNames":
        """Those of some flavors, as of a queue's; what none of them names means what it means everywhere."""
        # Nearly every cluster: each name has one meaning, whatever the queue.
        if not self.ambiguous:
            return self
        wanted = self._levels.keys() & set(flavors)
        found = self._within.get(key := frozenset(wanted))
        if found is None:
            found = LevelNames({name: meant for name, meant in self._meaning.items() if len(meant) == 1})
            for flavor in sorted(wanted):
                found.set(flavor, self._levels[flavor], self._names[flavor])
            self._within[key] = found
        return found

    def level(self, text: str) -> Level:
        """The level that is meant; the text itself where it is no name, or an ambiguous one."""
        meant = self._meaning.get(text, ())
        return meant[0] if len(meant) == 1 else text

    def ambiguous_levels(self, text: str) -> tuple[Level, ...]:
        """The levels that flavors call so, where they are more than one."""
        meant = self._meaning.get(text, ())
        return meant if len(meant) > 1 else ()

    def names_of_level(self, level: Level) -> tuple[Name, ...]:
        """The names by which a level may be asked for, by the alphabet."""
        return tuple(sorted(name for name, meant in self._meaning.items() if meant == (level,)))

    def _read(self) -> bool:
        levels = {level for each in self._levels.values() for level in each}
        found: dict[Name, dict[Level, None]] = {}
        # Sorted, so that a message names levels in one order, whichever flavor came first.
        for flavor in sorted(self._names):
            for name, level in self._names[flavor].items():
                if name not in levels and level in self._levels[flavor]:
                    found.setdefault(name, {})[level] = None
        # They are made of what the flavors said before.
        self._within.clear()
        past = {name: meant for name, meant in self._meaning.items() if name not in levels}
        before, self._meaning = self._meaning, past | {name: tuple(meant) for name, meant in found.items()}
        return self._meaning != before


NO_NAMES = LevelNames()  # nobody adds to it


def with_label_keys(request: ParsedRequest, names: LevelNames) -> ParsedRequest:
    """The request with label keys instead of names; the same object where it has no names."""
    written = request.as_written
    level = None if written.level is None else names.level(written.level)
    slices = tuple([_layer(layer, names) for layer in written.slices])
    shares = written.shares and _shares(written.shares, names)
    if (level, slices, shares) == (written.level, written.slices, written.shares):
        return written
    return replace(written, level=level, slices=slices, shares=shares, written=written)


def _shares(written: ShareLimits, names: LevelNames) -> ShareLimits:
    rules = tuple([msgspec.structs.replace(rule, level=names.level(rule.level)) for rule in written.rules])
    return msgspec.structs.replace(written, rules=rules)


def _layer(written: SliceLayer, names: LevelNames) -> SliceLayer:
    """Pods that are to be alone come from annotations of others, which know label keys and no names."""
    level = written.level if written.alone else names.level(written.level)
    return written if level == written.level else msgspec.structs.replace(written, level=level)


def check_level(
    request: ParsedRequest, flavors: Mapping[str, Sequence[str]], *, of: str = "", names: LevelNames = NO_NAMES
) -> None:
    """Refuse a level that no flavor has. ``flavors``: flavor name -> its levels, widest first; ``of``: whose they are.

    Raises RequestError (UnknownLevel) that lists the levels that exist, or says that there are none yet.
    """
    # First: an ambiguous name is no level of any flavor, and would be told as an unknown one.
    _check_names(request, names)
    wanted = request.level is not None
    having = [levels for levels in flavors.values() if levels and not (wanted and level_in(request, levels) is None)]
    if having:
        _check_layers(request, flavors, having, of, names)
        return
    known = _known_levels(flavors)
    also_auto = [AUTO] if request.policy is Policy.PREFERRED and known else []
    if known:
        allowed = f"allowed are {_list_levels([*known, *also_auto], names)}"
    else:
        allowed = f"there is no ResourceFlavor{of} with spec.topology yet: create one first"
    text = request.as_written.level or "unconstrained"
    # Without their domains: a person who writes rack means a key that ends with it.
    called = {name for level in known for name in (*names.names_of_level(level), level.rpartition("/")[2])}
    if hint := meant(text.rpartition("/")[2], called):
        allowed = f"{hint} {allowed[:1].upper()}{allowed[1:]}"
    raise RequestError(
        Reason.UNKNOWN_LEVEL,
        request.field,
        text,
        f'{request.field}: Unsupported value: "{text}": it is no topology level of any ResourceFlavor{of}; {allowed}',
    )


def _check_names(request: ParsedRequest, names: LevelNames) -> None:
    """Refuse names that flavors give to different levels."""
    said = [(request.level, request.field), *((layer.level, request.slices_field) for layer in request.slices)]
    said += [(rule.level, request.shares_field) for rule in (request.shares.rules if request.shares else ())]
    for name, field in said:
        if name and (several := names.ambiguous_levels(name)):
            text = f'Invalid value: "{name}": flavors give this name to different levels; use one of {quoted(several)}'
            raise RequestError(Reason.UNKNOWN_LEVEL, field, name, f"{field}: {text}")


def _check_layers(
    request: ParsedRequest,
    flavors: Mapping[str, Sequence[str]],
    having: Sequence[Sequence[str]],
    of: str,
    names: LevelNames,
) -> None:
    """Refuse slices that none of the flavors ``having`` the level can make."""
    layers = [layer.level for layer in request.slices]
    if not layers or any(_descend(level_in(request, levels), layers, levels) for levels in having):
        return
    field, known = request.slices_field, _known_levels(flavors)
    unknown = next((level for level in layers if level not in known), None)
    if unknown is not None:
        text = f'Unsupported value: "{unknown}": it is no topology level of any ResourceFlavor{of}; allowed are'
        raise RequestError(Reason.UNKNOWN_LEVEL, field, unknown, f"{field}: {text} {_list_levels(known, names)}")
    asked = [level for level in (None if request.auto else request.level, *layers) if level]
    text = f"{quoted(asked)} do not go from the widest to the narrowest in any ResourceFlavor{of}; levels are "
    text += "; ".join(quoted(levels) for levels in dict.fromkeys(tuple(levels) for levels in having))
    raise RequestError(Reason.INVALID_REQUEST, field, layers[0], f'{field}: Invalid value: "{layers[0]}": {text}')


def _descend(level: str | None, layers: Sequence[str], levels: Sequence[str]) -> bool:
    """Whether the layers are levels that go down, none of them above the requested level."""
    at = [levels.index(layer) if layer in levels else -1 for layer in layers]
    # Without a level of its own the request begins at the widest one.
    above = levels.index(level) if level in levels else 0
    return min(at) >= above and all(high < low for high, low in pairwise(at))


def _known_levels(flavors: Mapping[str, Sequence[str]]) -> list[str]:
    """Every level of every flavor once, widest first within a flavor, flavors by name."""
    return list(dict.fromkeys(level for name in sorted(flavors) for level in flavors[name]))


def _list_levels(levels: Sequence[str], names: LevelNames) -> str:
    """Levels with the names that they may be asked for by."""
    called = ((level, " or ".join(f'"{name}"' for name in names.names_of_level(level))) for level in levels)
    return ", ".join(f'"{level}"' + (f" ({name})" if name else "") for level, name in called)
