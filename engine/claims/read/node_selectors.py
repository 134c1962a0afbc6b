"""Node selectors from JSON."""

from engine.claims.node_selectors import OPERATORS, ReachNeed, ReachTerm, ReachTerms, number
from engine.claims.read.fields import Fields


def read_terms(selector: Fields) -> ReachTerms:
    """The terms of a node selector.

    Raises:
        ObjectError: an operator is not known, or has not the values that it takes.
    """
    return tuple(
        ReachTerm(
            tuple(_label_need(need) for need in term.parts_of_list("matchExpressions")),
            tuple(_field_need(need) for need in term.parts_of_list("matchFields")),
        )
        for term in selector.parts_of_list("nodeSelectorTerms")
    )


def _label_need(part: Fields) -> ReachNeed:
    need = _need(part)
    right = {
        "In": len(need.values) > 0,
        "NotIn": len(need.values) > 0,
        "Exists": not need.values,
        "DoesNotExist": not need.values,
        # Kubernetes takes exactly one value here, which has to be an integer.
        **dict.fromkeys(("Gt", "Lt"), len(need.values) == 1 and number(need.values[0]) is not None),
    }[need.operator]
    if not right:
        raise part.error("values", f"not what {need.operator} takes")
    return need


def _field_need(part: Fields) -> ReachNeed:
    need = _need(part)
    if need.operator not in {"In", "NotIn"} or len(need.values) != 1:
        raise part.error("operator", "expected In or NotIn with one value")
    return need


def _need(part: Fields) -> ReachNeed:
    need = ReachNeed(part.required("key"), part.required("operator"), part.texts("values"))
    if need.operator not in OPERATORS:
        raise part.error("operator", f"expected one of {', '.join(OPERATORS)}")
    return need
