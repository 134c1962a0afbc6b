"""Which labels of the nodes make a flavor: by one word, or by the labels themselves. Pure.

Rules
- Looked at are the nodes with accelerators, or all where none has any; with ``group`` those that carry these labels.
- A known label is a level where at least 95% of these nodes carry it and most of its domains lie in one of the wider
  level. Labels that somebody names are taken as they are, but for those that no node carries or that are the wrong way
  round.
- ``auto`` takes the source with the most such levels; of equal ones the first in `known.SOURCES`. A level with one
  value divides nothing, and tools put such levels on and take them off again: it is none of ``auto``, but for the
  narrowest where the cluster has one domain of each.
- The hostname is the last level, named or not.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec
from msgspec.structs import replace

from cli.output import Failure
from cli.topology import known
from cli.topology.known import CLIQUE, HOSTS, KnownLevel, LabelSource
from cli.topology.odd import lopsided_levels, odd_one, superseded
from cli.topology.survey import (
    COVERED,
    Coverage,
    Labelled,
    candidates,
    coverage,
    domains,
    listed,
    nesting,
    shared,
    unknown_in_words,
    with_verb,
)
from crds.constants import HOSTNAME_LABEL, MAX_LEVELS
from crds.names import is_label_key
from crds.spelling import closest
from crds.topology_labels import lopsided_in_words, superseded_in_words

_LAST = re.compile(r"[a-z][a-z0-9]*\Z")
_MOST_SHOWN = 8


class LevelChoice(msgspec.Struct):
    """The levels of a flavor, and what a person should know about them."""

    word: str
    title: str
    levels: list[KnownLevel] = msgspec.field(default_factory=list)
    found: list[Coverage] = msgspec.field(default_factory=list)  # of the levels
    domains: list[Coverage] = msgspec.field(default_factory=list)  # of the levels, each within its wider ones
    left_out: list[str] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)
    warnings: list[str] = msgspec.field(default_factory=list)
    group: dict[str, str] = msgspec.field(default_factory=dict)  # the labels of the flavor's nodes
    nodes: int = 0
    accelerators: tuple[str, ...] = ()

    @property
    def names(self) -> dict[str, str]:
        """By which jobs may ask for the levels; the narrowest has a word where several do."""
        return {name: level.key for level in self.levels for name in level.names}

    def keep_narrowest(self) -> None:
        """Of its levels, which have one domain each, the narrowest alone."""
        for wider, narrower in pairwise(self.levels):
            self.left_out.append(f"{wider.key} has one value, as {narrower.key} has")
        del self.levels[:-1], self.found[:-1]


def choose(nodes: Sequence[Labelled], text: str, group: Mapping[str, str] | None = None) -> LevelChoice:
    """The topology that ``text`` means on these nodes. Raises Failure that says what they carry instead."""
    check(text)
    if not nodes:
        raise Failure("--topology: there is no node to read labels from")
    if group:
        inside = [node for node in nodes if group.items() <= node.labels.items()]
        if not inside:
            wanted = ", ".join(f"{key}={value}" for key, value in group.items())
            raise Failure(f"--nodes {wanted}: no node has these labels")
        looked_at = inside
    else:
        looked_at = [node for node in nodes if node.accelerators] or list(nodes)
    source = next((one for one in known.SOURCES if one.word == text), None)
    if text == known.AUTO:
        found = _automatic(looked_at)
    elif source is not None:
        found = _of_source(looked_at, source)
        if not found.levels:
            listing = "; ".join(found.left_out) or f"no node has any of the labels that {text} sets"
            raise Failure(f"--topology {text}: {listing}. {_carried(looked_at)}")
    else:
        found = _of_labels(looked_at, text)
    # Always last; `_add` passes over it where somebody has named it.
    _add(found, looked_at, HOSTS)
    _warn_of_missing(found)
    keys = [level.key for level in found.levels]
    # Labels that do not nest give odd sizes too: one warning a fault.
    if not found.warnings and (odd := odd_one(looked_at, keys)) is not None:
        found.warnings.append(str(odd))
    found.warnings.extend(lopsided_in_words(*one) for one in lopsided_levels(looked_at, keys))
    found.warnings.extend(superseded_in_words(key) for key in superseded(looked_at, keys))
    return replace(
        found,
        domains=[domains(looked_at, keys[: at + 1]) for at in range(len(keys))],
        nodes=len(looked_at),
        accelerators=tuple(sorted({name for node in looked_at for name in node.accelerators})),
        group=dict(group) if group else _group(nodes, looked_at),
    )


def check(text: str) -> None:
    """Whether ``--topology`` may mean something, before anybody looks at nodes. Raises Failure."""
    if text in known.WORDS:
        return
    keys = _keys(text)
    if keys == [""]:
        raise Failure(f'--topology "": expected {_quoted(known.WORDS)}, or LABEL,LABEL, the widest first')
    for key in keys:
        if not is_label_key(key):
            raise Failure(f"--topology {text}: {key!r} is neither {_quoted(known.WORDS)} nor the key of a node label")
        if keys.count(key) > 1:
            raise Failure(f"--topology {text}: {key} is there twice")
    if len(keys) == 1 and "/" not in text:
        close = known.CLOUDS.get(text.lower()) or closest(text, known.WORDS)
        meant = f"did you mean {close}? As it stands, " if close else ""
        raise Failure(
            f"--topology {text}: {meant}it is none of {_quoted(known.WORDS)}; where it is the key of a label, say "
            f"{text},{HOSTNAME_LABEL}"
        )
    if HOSTNAME_LABEL in keys[:-1]:
        raise Failure(f"--topology {text}: {HOSTNAME_LABEL} may only be the last: nothing is narrower than a host")
    if len({*keys, HOSTNAME_LABEL}) > MAX_LEVELS:
        raise Failure(f"--topology {text}: a flavor has at most {MAX_LEVELS} levels, the host included")


def _keys(text: str) -> list[str]:
    return [key.strip() for key in text.split(",")]


def _automatic(nodes: Sequence[Labelled]) -> LevelChoice:
    every = [_of_source(nodes, source, divided=True) for source in known.SOURCES]
    best = max(every, key=lambda one: len(one.levels))  # the first of equal ones
    if not best.levels:
        best = max((_of_source(nodes, source) for source in known.SOURCES), key=lambda one: len(one.levels))
        best.keep_narrowest()
    if not best.levels:
        if kinds := _kinds(nodes):
            raise Failure(f"--topology auto: no known topology label is on all of the {len(nodes)} nodes. {kinds}")
        partly = [line for one in every for line in one.left_out]
        raise Failure(
            f"--topology auto: {'; '.join(partly) or 'no known topology label is on them'}. {_carried(nodes)}"
        )
    # NVIDIA's own label beside a cloud's network labels; a cloud that tells NVLink itself knows better.
    if not any(level.nvlink for level in best.levels):
        _consider(best, nodes, CLIQUE, divided=True)
    if kinds := _kinds(nodes):
        best.notes.append(kinds)
    # The clique label has been considered as a level above, so it is no rival.
    others = [one.word for one in every if one.levels and one.word not in {best.word, "nvl72"}]
    if others:
        best.left_out.append(f"the labels of {', '.join(others)} are there too (--topology {others[0]})")
    return best


def _of_source(nodes: Sequence[Labelled], source: LabelSource, *, divided: bool = False) -> LevelChoice:
    made = LevelChoice(source.word, source.title)
    for level in source.levels:
        _consider(made, nodes, level, reused=source.reused, divided=divided)
    return made


def _consider(
    made: LevelChoice, nodes: Sequence[Labelled], level: KnownLevel, *, reused: bool = False, divided: bool = False
) -> None:
    """Take a known label as the next level, where it fits; ``divided``: only where it has several values."""
    here = coverage(nodes, level.key)
    if not here.enough:
        if here.carried:
            share = f"{here.carried} of {here.nodes} nodes ({100 * here.carried // here.nodes}%)"
            who = with_verb(here.missing, "lacks", "lack")
            made.left_out.append(f"{level.key} is on {share}, and a level has to be on 95%: {who} it")
        return
    if divided and len(here.values) == 1:
        value = next(iter(here.values))
        made.left_out.append(f"{level.key} has one value ({value}) and divides nothing: name it if it will have more")
        return
    if made.levels:
        how = nesting(nodes, made.levels[-1].key, level.key)
        # Racks named alike in every block never nest, and are right all the same.
        if not how.nests and not reused:
            made.left_out.append(f"{level.key} does not nest: {how}")
            return
        if how.straddling and how.nests:
            made.warnings.append(f"{level.key}: {how}; one of the two labels is wrong there")
    _add(made, nodes, level)


def _add(made: LevelChoice, nodes: Sequence[Labelled], level: KnownLevel) -> None:
    if level.key not in {one.key for one in made.levels}:
        made.levels.append(level)
        made.found.append(coverage(nodes, level.key))


def _of_labels(nodes: Sequence[Labelled], text: str) -> LevelChoice:
    keys = _keys(text)
    made = LevelChoice("labels", "the labels that were named")
    for key in keys:
        if not coverage(nodes, key).carried:
            raise Failure(f"--topology {text}: no node has a label {key}. {_carried(nodes)}")
    for wide, narrow in pairwise(keys):
        how = nesting(nodes, wide, narrow)
        swapped = ",".join({wide: narrow, narrow: wide}.get(key, key) for key in keys)
        first = f"name the wider one first, as --topology {swapped}"
        if how.turned:
            raise Failure(f"--topology {text}: {wide} lies within {narrow}: {first}")
        # Crossed labels fit either way round; only what people call the levels decides.
        if how.crossed and known.is_wider_level(narrow, wide):
            one, other = known.last_word(narrow), known.last_word(wide)
            raise Failure(
                f"--topology {text}: each {one} is in several of {wide}, so these labels do not nest this way round, "
                f"and a {one} is wider than a {other}: {first}"
            )
        if how.mistaken:
            made.warnings.append(f"{narrow}: {how}; each such part is a domain of its own")
        elif how.straddling:
            unsure = how.crossed and not known.is_wider_level(wide, narrow)
            turn = f"; if {wide} is the narrower of the two, {first}" if unsure else ""
            made.notes.append(f"the same value of {narrow} in another {wide} is another domain{turn}")
    for level in _called(keys):
        _add(made, nodes, level)
    return made


def _called(keys: Iterable[str]) -> Iterable[KnownLevel]:
    """Known levels with their names; others with the end of their keys, where that is a word: ``row``."""
    keys = list(keys)
    told = {level.key: level for source in known.SOURCES for level in source.levels} | {HOSTS.key: HOSTS}
    ends = [known.last_word(key) for key in keys]
    for key, end in zip(keys, ends, strict=True):
        # A name must not be taken for a number, a keyword, another level's name or a key.
        usable = bool(_LAST.match(end)) and ends.count(end) == 1 and end not in {known.AUTO, known.HOST, *keys}
        yield told.get(key) or KnownLevel(key, (end,) if usable else ())


def _group(every: Sequence[Labelled], chosen: Sequence[Labelled]) -> dict[str, str]:
    """One label that all chosen nodes have, and if possible no others."""
    same, names = shared(chosen), {node.name for node in chosen}
    others = [node for node in every if node.name not in names]
    # A label that other nodes have too would pull them into the flavor.
    alone = [key for key, value in same.items() if not any(node.labels.get(key) == value for node in others)]
    for keys in ([key for key in known.GROUPS if key in alone], [key for key in known.GROUPS if key in same]):
        if keys:
            return {keys[0]: same[keys[0]]}
    for key in (*known.EVERYWHERE, *sorted(alone), *sorted(same)):
        if key in same:
            return {key: same[key]}
    raise Failure("--topology: these nodes have no label in common: say which nodes are meant, by --nodes KEY=VALUE")


def _warn_of_missing(found: LevelChoice) -> None:
    lacking: dict[str, list[str]] = {}
    for one in found.found:
        for value, names in one.unknown.items():
            found.warnings.append(unknown_in_words(one, value, names))
        told = {name for names in one.unknown.values() for name in names}
        for name in one.missing:
            if name not in told:
                lacking.setdefault(name, []).append(one.key)
    if lacking:
        keys = ", ".join(dict.fromkeys(key for keys in lacking.values() for key in keys))
        found.warnings.append(f"{listed(sorted(lacking))} will take no pods until labelled with {keys}")


def _kinds(nodes: Sequence[Labelled]) -> str:
    """Where some nodes have the labels of one source alone: the command for each such kind of nodes; else ""."""
    found = []
    for source in known.SOURCES:
        keys = {level.key for level in source.levels}
        kind = [node for node in nodes if any(map(node.value, keys))]
        others = [node for node in nodes if not any(map(node.value, keys))]
        if not kind or len(kind) >= COVERED * len(nodes):
            continue
        same = {key: value for key, value in shared(kind).items() if key not in keys}
        alone = [key for key in same if not any(node.labels.get(key) == same[key] for node in others)]
        if key := next((key for key in (*known.GROUPS, *sorted(alone)) if key in alone), ""):
            found.append(f"--topology {source.word} --nodes {key}={same[key]} ({len(kind)} nodes)")
    return f"There are several kinds of nodes, so run it once for each: {'; '.join(found)}" if found else ""


def _carried(nodes: Sequence[Labelled]) -> str:
    """What else might be a level, for somebody whose word found nothing."""
    possible = candidates(nodes, {HOSTNAME_LABEL})[:_MOST_SHOWN]
    if not possible:
        return f"No label of the {len(nodes)} nodes groups them: label them, the widest level first"
    told = ", ".join(f"{one.key} ({len(one.values)} domains)" for one in possible)
    return f"Labels that group the {len(nodes)} nodes: {told}; name yours as --topology WIDE,NARROW"


def _quoted(words: Iterable[str]) -> str:
    return ", ".join(words)
