"""What Kubernetes adds to CEL: quantities, versions, addresses (k8s.io/apiserver/pkg/cel/library), optional values."""

from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface, ip_address
from typing import Final, TypeVar

from engine.claims import quantities
from engine.claims.cel import versions
from engine.claims.cel.errors import EvaluationError
from engine.claims.cel.overloads import Overload, Overloads, first_text, traversal
from engine.claims.cel.types import BOOL, CIDR, DOUBLE, DYN, INT, IP, QUANTITY, SEMVER, STRING, Type, optional_of
from engine.claims.cel.values import NONE, Optional, Value
from engine.claims.quantities import Quantity

Parsed = TypeVar("Parsed")
AnyAddress = IPv4Address | IPv6Address
AnyPrefix = IPv4Interface | IPv6Interface


def _parse_or_fail(parse: Callable[[str], Parsed], text: str) -> Parsed:
    try:
        return parse(text)
    except ValueError as error:
        raise EvaluationError(str(error)) from error


def _parses(parse: Callable[[str], Value]) -> Callable[[str], bool]:
    def tried(text: str) -> bool:
        try:
            parse(text)
        except ValueError:
            return False
        return True

    return tried


def _integer(quantity: Quantity) -> int:
    value = quantity.integer()
    if value is None:
        raise EvaluationError("cannot convert value to integer")
    return value


def _version(text: str, tolerant: bool = False) -> versions.Version:
    return _parse_or_fail(versions.parse_tolerant if tolerant else versions.parse, text)


def _is_version(text: str, tolerant: bool = False) -> bool:
    return _parses(versions.parse_tolerant if tolerant else versions.parse)(text)


def address(text: str) -> AnyAddress:
    """An IP address without zone, which is not an IPv4 address in IPv6.

    Raises:
        ValueError: the text is none.
    """
    found = ip_address(text)
    # As Kubernetes' library/ip.go refuses them.
    if isinstance(found, IPv6Address) and (found.scope_id is not None or found.ipv4_mapped is not None):
        raise ValueError(f"IP address {text!r} with a zone, or IPv4 in IPv6, is not allowed")
    return found


def prefix(text: str) -> AnyPrefix:
    """An address with the length of its network.

    Raises:
        ValueError: the text is none.
    """
    host, slash, bits = text.partition("/")
    # Go's parser takes no sign, no leading zero and no netmask.
    if not slash or not (bits.isascii() and bits.isdigit()) or len(bits) > 3 or (len(bits) > 1 and bits[0] == "0"):
        raise ValueError(f"network address parse error: {text[:64]!r}")
    found = address(host)
    return IPv4Interface((found, int(bits))) if isinstance(found, IPv4Address) else IPv6Interface((found, int(bits)))


def _contains_address(network: AnyPrefix, other: AnyAddress) -> bool:
    return other.version == network.version and other in network.network


def _contains_prefix(network: AnyPrefix, other: AnyPrefix) -> bool:
    return _contains_address(network, other.ip) and network.network.prefixlen <= other.network.prefixlen


def _cost_of_contains(network: AnyPrefix, other: AnyAddress | AnyPrefix | str) -> int:
    """The cost of asking what a network contains; a text has to be read first."""
    bits = 4 if network.version == 4 else 16
    return traversal(2 * bits) + (traversal(len(other)) if isinstance(other, str) else 0)


def _value(optional: Optional) -> Value:
    if not optional.there:
        raise EvaluationError("optional.none() dereference")
    return optional.value


def _methods(kind: Type, functions: dict[str, tuple[Type, Callable[..., Value]]]) -> Overloads:
    """Methods without arguments, each of which costs 1."""
    return {(name, True): (Overload((kind,), result, run),) for name, (result, run) in functions.items()}


QUANTITIES: Final[Overloads] = {
    ("quantity", False): (
        Overload((STRING,), QUANTITY, lambda text: _parse_or_fail(quantities.parse, text), first_text),
    ),
    ("isQuantity", False): (Overload((STRING,), BOOL, _parses(quantities.parse), first_text),),
    ("add", True): (
        Overload((QUANTITY, QUANTITY), QUANTITY, lambda left, right: left.plus(right.nanos, right.scale)),
        Overload((QUANTITY, INT), QUANTITY, lambda left, right: left.plus(right * quantities.NANO, 0)),
    ),
    ("sub", True): (
        Overload((QUANTITY, QUANTITY), QUANTITY, lambda left, right: left.plus(-right.nanos, right.scale)),
        Overload((QUANTITY, INT), QUANTITY, lambda left, right: left.plus(-right * quantities.NANO, 0)),
    ),
    **_methods(
        QUANTITY,
        {
            "isInteger": (BOOL, lambda quantity: quantity.integer() is not None),
            "asInteger": (INT, _integer),
            "asApproximateFloat": (DOUBLE, lambda quantity: quantity.nanos / quantities.NANO),
        },
    ),
    ("sign", False): (Overload((QUANTITY,), INT, lambda quantity: (quantity.nanos > 0) - (quantity.nanos < 0)),),
}

COMPARISONS: Final[Overloads] = {
    ("compareTo", True): (
        Overload(
            (QUANTITY, QUANTITY), INT, lambda left, right: (left.nanos > right.nanos) - (left.nanos < right.nanos)
        ),
        Overload((SEMVER, SEMVER), INT, versions.Version.compared),
    ),
    ("isGreaterThan", True): (
        Overload((QUANTITY, QUANTITY), BOOL, lambda left, right: left.nanos > right.nanos),
        Overload((SEMVER, SEMVER), BOOL, lambda left, right: left.compared(right) > 0),
    ),
    ("isLessThan", True): (
        Overload((QUANTITY, QUANTITY), BOOL, lambda left, right: left.nanos < right.nanos),
        Overload((SEMVER, SEMVER), BOOL, lambda left, right: left.compared(right) < 0),
    ),
}

VERSIONS: Final[Overloads] = {
    ("semver", False): (
        Overload((STRING,), SEMVER, _version, first_text),
        Overload((STRING, BOOL), SEMVER, _version, first_text),
    ),
    ("isSemver", False): (
        Overload((STRING,), BOOL, _is_version, first_text),
        Overload((STRING, BOOL), BOOL, _is_version, first_text),
    ),
    **_methods(
        SEMVER,
        {
            "major": (INT, lambda version: version.major),
            "minor": (INT, lambda version: version.minor),
            "patch": (INT, lambda version: version.patch),
        },
    ),
}

ADDRESSES: Final[Overloads] = {
    ("ip", False): (Overload((STRING,), IP, lambda text: _parse_or_fail(address, text), first_text),),
    ("isIP", False): (Overload((STRING,), BOOL, _parses(address), first_text),),
    ("ip.isCanonical", False): (
        Overload(
            (STRING,),
            BOOL,
            lambda text: str(_parse_or_fail(address, text)) == text,
            lambda text: traversal(2 * len(text)),
        ),
    ),
    ("cidr", False): (Overload((STRING,), CIDR, lambda text: _parse_or_fail(prefix, text), first_text),),
    ("isCIDR", False): (Overload((STRING,), BOOL, _parses(prefix), first_text),),
    ("containsIP", True): (
        Overload((CIDR, IP), BOOL, _contains_address, _cost_of_contains),
        Overload(
            (CIDR, STRING),
            BOOL,
            lambda net, text: _contains_address(net, _parse_or_fail(address, text)),
            _cost_of_contains,
        ),
    ),
    ("containsCIDR", True): (
        Overload((CIDR, CIDR), BOOL, _contains_prefix, _cost_of_contains),
        Overload(
            (CIDR, STRING),
            BOOL,
            lambda net, text: _contains_prefix(net, _parse_or_fail(prefix, text)),
            _cost_of_contains,
        ),
    ),
    ("string", False): (
        Overload((CIDR,), STRING, lambda network: network.with_prefixlen),
        Overload((IP,), STRING, str),
    ),
    **_methods(
        CIDR,
        {
            "ip": (IP, lambda network: address(str(network.ip))),
            "prefixLength": (INT, lambda network: network.network.prefixlen),
            "masked": (CIDR, lambda network: prefix(str(network.network))),
        },
    ),
    **_methods(
        IP,
        {
            "family": (INT, lambda found: found.version),
            "isUnspecified": (BOOL, lambda found: found.is_unspecified),
            "isLoopback": (BOOL, lambda found: found.is_loopback),
        },
    ),
}

OPTIONALS: Final[Overloads] = {
    ("optional.none", False): (Overload((), optional_of(DYN), lambda: NONE),),
    ("optional.of", False): (Overload((DYN,), optional_of(DYN), lambda value: Optional(value, there=True)),),
    **_methods(optional_of(DYN), {"hasValue": (BOOL, lambda optional: optional.there), "value": (DYN, _value)}),
    ("orValue", True): (
        Overload((optional_of(DYN), DYN), DYN, lambda optional, other: optional.value if optional.there else other),
    ),
    ("or", True): (
        Overload(
            (optional_of(DYN), optional_of(DYN)),
            optional_of(DYN),
            lambda optional, other: optional if optional.there else other,
        ),
    ),
}
