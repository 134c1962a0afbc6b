"""Changes of a JSON value at a place that is drawn, whatever it stands for."""

import copy
import json

GONE = object()


def places(value, at=()):
    """Every place in a JSON value."""
    yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*at, key))


def put(value, at, new):
    """Put something at a place, or take away what is there (``GONE``); the value as it is then."""
    if not at:
        return new
    target = value
    for key in at[:-1]:
        target = target[key]
    if new is GONE:
        del target[at[-1]]
    else:
        target[at[-1]] = new
    return value


def get(value, at):
    """What is at a place."""
    for key in at:
        value = value[key]
    return value


def replaced(value, dice, anything):
    """Something else, by ``anything(dice)``, stands somewhere."""
    return put(value, dice.choice(list(places(value))), anything(dice))


def removed(value, dice):
    """A part is missing."""
    found = [at for at in places(value) if at]
    return put(value, dice.choice(found), GONE) if found else value


def moved(value, dice):
    """A part of it stands in another place too."""
    found = list(places(value))
    return put(value, dice.choice(found), copy.deepcopy(get(value, dice.choice(found))))


def wrapped(value, dice):
    """A part is one entry of a list or of a map, or is text."""
    at = dice.choice(list(places(value)))
    inner = get(value, at)
    return put(value, at, dice.choice(([inner], {"value": inner}, [inner] * 3, json.dumps(inner, default=str))))


def renamed(value, dice):
    """A key is another one."""
    found = [at for at in places(value) if at and isinstance(at[-1], str)]
    if not found:
        return value
    *parents, key = dice.choice(found)
    parent = get(value, parents)
    if isinstance(parent, dict):
        new = dice.choice((key.upper(), key.title(), key + "\u0000", key + " ", "", key[::-1], key * 3))
        parent[new] = parent.pop(key)
    return value
