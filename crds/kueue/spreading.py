"""The annotation ``podset-topology-spreading``: no domain is to have too large a share of what belongs together.

Kueue has it from 0.20 on (PR 14820, gate ``TASTopologySpreading``, alpha). The form is that of its code
(pkg/util/tas/spreading.go and spreading_validation.go): KEP-13746 has other names and percentages in earlier versions::

    {"workloadLabelSelectors": [{"key": "app", "operator": "In", "values": ["main"]}],
     "rules": [{"topologyKey": "cloud/rack", "maxShareAllowingPlacement": "0.45", "enforcementMode": "Required"}]}

Rules
- One or two rules, each of another level. A share is a quantity above 0 and below 1, in steps of a thousandth.
- One selector at most, with the operator ``In``. Without one, what belongs together is what one owner has.
- A field that is none of these is refused: Kueue passes over it, and a slip in a limit would place what it forbids.
"""

from typing import Any, Final

import msgspec

from crds.names import is_label_key, is_label_value
from engine import quantity
from engine.model import ShareLimits, ShareRule
from engine.reasons import Reason

MAX_RULES: Final = 2
MAX_VALUES: Final = 64
MAX_LENGTH: Final = 8192
_SHOWN: Final = 64
_MODES: Final = ("Required", "Preferred")
_SPREADING: Final = ("workloadLabelSelectors", "rules")
_RULE: Final = ("topologyKey", "maxShareAllowingPlacement", "enforcementMode")
_SELECTOR: Final = ("key", "operator", "values")
_SHARE: Final = 'expected a quantity above 0 and below 1, as "0.45"'


class WrongAnnotation(Exception):  # noqa: N818  (a finding on its way to the caller)
    """What cannot be honoured of an annotation: its path, what stands there, and in ``str`` the path with the cure."""

    def __init__(self, field: str, value: str, text: str, reason: Reason = Reason.INVALID_REQUEST) -> None:
        super().__init__(f"{field}: {text}")
        self.field, self.value, self.reason = field, value, reason


def read_spreading(text: str, field: str) -> ShareLimits:
    """The limits that an annotation says; ``field``: its path. Raises WrongAnnotation."""
    expected = 'expected JSON as {"rules": [{"topologyKey": "example.com/rack", "maxShareAllowingPlacement": "0.45"}]}'
    if len(text) > MAX_LENGTH:
        raise WrongAnnotation(field, text[:_SHOWN], f"Too long: may not be more than {MAX_LENGTH} characters")
    try:
        body = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise WrongAnnotation(field, text[:_SHOWN], f'Invalid value: "{text[:_SHOWN]}": {expected}')
    selectors, rules = _read_object(body, _SPREADING, field, expected)
    key, values = _selector(selectors, f"{field}.workloadLabelSelectors")
    if not isinstance(rules, list) or not 1 <= len(rules) <= MAX_RULES:
        raise _invalid(f"{field}.rules", rules, f"expected a list of 1 to {MAX_RULES} rules")
    found: dict[str, ShareRule] = {}
    for at, rule in enumerate(rules):
        made = _rule(rule, f"{field}.rules[{at}]")
        if made.level in found:
            where = f"{field}.rules[{at}].topologyKey"
            raise WrongAnnotation(where, made.level, f'Duplicate value: "{made.level}": one rule a level')
        found[made.level] = made
    return ShareLimits(rules=tuple(found.values()), key=key, values=values)


def _rule(rule: Any, field: str) -> ShareRule:
    level, share, mode = _read_object(rule, _RULE, field, "expected a topologyKey and a maxShareAllowingPlacement")
    if not isinstance(level, str) or not is_label_key(level):
        raise _invalid(f"{field}.topologyKey", level, "expected the node label key of one topology level, or its name")
    if mode is not None and mode not in _MODES:
        raise _unsupported(f"{field}.enforcementMode", mode, _MODES)
    return ShareRule(level=level, most=_share(share, f"{field}.{_RULE[1]}"), required=mode != "Preferred")


def _share(share: Any, field: str) -> int:
    """In thousandths, rounded up as Kueue does (``ScaledValue`` in ``ExceedsShare``)."""
    # In Python true is the number 1. Kueue reads numbers without quotes too.
    if isinstance(share, bool) or not isinstance(share, str | int | float) or len(str(share)) > _SHOWN:
        raise _invalid(field, share, _SHARE)
    try:
        exact, found = quantity.parse_part("", str(share)), quantity.parse(quantity.CPU, str(share))
    except ValueError:
        raise _invalid(field, share, _SHARE) from None
    if not 0 < exact < 1:
        raise _invalid(field, share, _SHARE)
    return found


def _selector(selectors: Any, field: str) -> tuple[str, tuple[str, ...]]:
    """Key and values of the only requirement; nothing where none is said."""
    if selectors is None or selectors == []:
        return "", ()
    if not isinstance(selectors, list) or len(selectors) > 1:
        raise _invalid(field, selectors, "expected a list of at most one requirement")
    (one,) = selectors
    field = f"{field}[0]"
    key, operator, values = _read_object(one, _SELECTOR, field, "expected a key, an operator and values")
    if not isinstance(key, str) or not is_label_key(key):
        raise _invalid(f"{field}.key", key, "expected the key of a label of pods")
    if operator != "In":
        raise _unsupported(f"{field}.operator", operator, ("In",))
    if not isinstance(values, list) or not 1 <= len(values) <= MAX_VALUES:
        raise _invalid(f"{field}.values", values, f"expected a list of 1 to {MAX_VALUES} values of the label")
    for at, value in enumerate(values):
        if not isinstance(value, str) or not is_label_value(value):
            raise _invalid(f"{field}.values[{at}]", value, "expected a value of the label")
    return key, tuple(dict.fromkeys(values))


def _read_object(found: Any, names: tuple[str, ...], field: str, expected: str) -> list[Any]:
    """What an object has under ``names``, in their order; it may have no other fields. Raises WrongAnnotation."""
    if not isinstance(found, dict):
        raise _invalid(field, found, expected)
    if unknown := sorted(found.keys() - set(names)):
        name = unknown[0][:_SHOWN]
        raise WrongAnnotation(f"{field}.{name}", name, f"unknown field: there are {', '.join(names)}")
    return [found.get(name) for name in names]


def _shown(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _unsupported(field: str, value: Any, supported: tuple[str, ...]) -> WrongAnnotation:
    names = ", ".join(f'"{one}"' for one in supported)
    return WrongAnnotation(field, _shown(value), f"Unsupported value: {_shown(value)}: supported values: {names}")


def _invalid(field: str, value: Any, expected: str) -> WrongAnnotation:
    if value is None:
        return WrongAnnotation(field, "", f"Required value: {expected}")
    return WrongAnnotation(field, _shown(value), f"Invalid value: {_shown(value)}: {expected}")
