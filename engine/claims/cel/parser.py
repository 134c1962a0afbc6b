"""The syntax of CEL: from text to a tree.

The grammar is that of github.com/google/cel-go (parser/gen/CEL.g4), without messages, which Kubernetes has none of, and
without optional entries of lists and maps. It is parsed without recursion, and the tree's depth is limited, so that no
expression can exhaust the stack of whoever walks it.
"""

from functools import lru_cache
from typing import Final, cast

from lark import Lark, Token, Transformer, v_args
from lark.exceptions import LarkError, VisitError

from engine.claims.cel.errors import CompileError
from engine.claims.cel.literals import LiteralError, integer, text_of, unsigned
from engine.claims.cel.syntax import Call, Const, IndexTerm, Items, MapTerm, Select, Term, VariableTerm

LONGEST: Final = 10 * 1024  # characters; the API takes no longer selector
# Code is nested closures, several Python frames for each level, beside those of the search.
DEEPEST: Final = 64  # nested operations; cel-go stops at 250

_WORDS: Final = (
    "as break const continue else false for function if import in let loop null package namespace return true var void "
    "while"
)
_RESERVED: Final = frozenset(_WORDS.split())

_GRAMMAR: Final = r"""
?start: expression

?expression: disjunction
    | disjunction "?" disjunction ":" expression -> conditional

?disjunction: conjunction
    | conjunction ("||" conjunction)+ -> any_of

?conjunction: relation
    | relation ("&&" relation)+ -> all_of

?relation: sum
    | relation RELATION sum -> binary
    | relation "in" sum -> contained

?sum: product
    | sum SIGN product -> binary

?product: unary
    | product FACTOR unary -> binary

?unary: member
    | NOT+ member -> negation
    | SIGN+ member -> minus

?member: primary
    | member "." IDENT -> select
    | member "." "?" IDENT -> optional_select
    | member "." IDENT "(" arguments ")" -> member_call
    | member "[" expression "]" -> index
    | member "[" "?" expression "]" -> optional_index

?primary: "."? IDENT -> name
    | "."? IDENT "(" arguments ")" -> call
    | "(" expression ")"
    | "[" [expression ("," expression)*] ","? "]" -> items
    | "{" [entry ("," entry)*] ","? "}" -> entries
    | literal

arguments: [expression ("," expression)*]
entry: expression ":" expression

?literal: INT -> integer
    | UINT -> unsigned
    | FLOAT -> double
    | STRING -> text
    | "true" -> true
    | "false" -> false
    | "null" -> null

RELATION: "<=" | ">=" | "==" | "!=" | "<" | ">"
SIGN: "+" | "-"
FACTOR: "*" | "/" | "%"
NOT: "!"
IDENT: /[_a-zA-Z][_a-zA-Z0-9]*/
FLOAT.3: /[0-9]+\.[0-9]+([eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|\.[0-9]+([eE][+-]?[0-9]+)?/
UINT.2: /(0x[0-9a-fA-F]+|[0-9]+)[uU]/
INT: /0x[0-9a-fA-F]+|[0-9]+/
STRING.4: /[rR]("{3}[\s\S]*?"{3}|'{3}[\s\S]*?'{3}|"[^"\n\r]*"|'[^'\n\r]*')
    |"{3}(\\[\s\S]|[^\\])*?"{3}|'{3}(\\[\s\S]|[^\\])*?'{3}|"(\\.|[^\\"\n\r])*"|'(\\.|[^\\'\n\r])*'/x
COMMENT: /\/\/[^\n]*/
%ignore /[\t \r\n\f]+/
%ignore COMMENT
"""


def parse(text: str) -> Term:
    """The tree of an expression.

    Raises:
        CompileError: it is too long, nested too deep, or no expression.
    """
    if len(text) > LONGEST:
        raise CompileError(f"expected at most {LONGEST} characters, got {len(text)}")
    try:
        parsed = _parser().parse(text)
    except VisitError as error:
        raise CompileError(str(error.orig_exc)) from error
    except (LiteralError, LarkError) as error:
        raise CompileError(f"syntax: {str(error).splitlines()[0]}") from error
    return cast("Term", parsed)  # the grammar starts with one expression


def _above(*nodes: Term) -> int:
    depth = 1 + max((node.depth for node in nodes), default=0)
    if depth > DEEPEST:
        raise CompileError(f"nested deeper than {DEEPEST}, which is not evaluated here")
    return depth


def _operation(function: str, *operands: Term) -> Call:
    return Call(function, None, operands, depth=_above(*operands))


@v_args(inline=True)
class _Builder(Transformer[Token, Term]):
    """Makes nodes while the text is parsed; methods are named after the grammar's rules."""

    def conditional(self, condition: Term, then: Term, otherwise: Term) -> Term:
        return _operation("_?_:_", condition, then, otherwise)

    def any_of(self, *terms: Term) -> Term:
        return _operation("_||_", *terms)

    def all_of(self, *terms: Term) -> Term:
        return _operation("_&&_", *terms)

    def binary(self, left: Term, operator: Token, right: Term) -> Term:
        return _operation(f"_{operator}_", left, right)

    def contained(self, left: Term, right: Term) -> Term:
        return _operation("@in", left, right)

    def negation(self, *parts: Token | Term) -> Term:
        signs, operand = parts[:-1], cast("Term", parts[-1])
        return operand if len(signs) % 2 == 0 else _operation("!_", operand)

    def minus(self, *parts: Token | Term) -> Term:
        signs, operand = parts[:-1], cast("Term", parts[-1])
        if any(str(sign) != "-" for sign in signs):
            raise CompileError("syntax: a sign + stands before no operand")
        # -2^63 is written as the negative of 2^63, which alone is no integer (`literals.integer`).
        if isinstance(operand, Const) and type(operand.value) in {int, float} and len(signs) == 1:
            return Const(-operand.value)
        return operand if len(signs) % 2 == 0 else _operation("-_", operand)

    def select(self, operand: Term, name: Token) -> Term:
        return Select(operand, str(name), optional=False, depth=_above(operand))

    def optional_select(self, operand: Term, name: Token) -> Term:
        return Select(operand, str(name), optional=True, depth=_above(operand))

    def index(self, operand: Term, key: Term) -> Term:
        return IndexTerm(operand, key, optional=False, depth=_above(operand, key))

    def optional_index(self, operand: Term, key: Term) -> Term:
        return IndexTerm(operand, key, optional=True, depth=_above(operand, key))

    def member_call(self, target: Term, name: Token, arguments: tuple[Term, ...]) -> Term:
        return Call(str(name), target, arguments, depth=_above(target, *arguments))

    def call(self, name: Token, arguments: tuple[Term, ...]) -> Term:
        return Call(_unreserved(name), None, arguments, depth=_above(*arguments))

    def arguments(self, *arguments: Term | None) -> tuple[Term, ...]:
        return tuple(one for one in arguments if one is not None)

    def name(self, name: Token) -> Term:
        return VariableTerm(_unreserved(name))

    def items(self, *items: Term | None) -> Term:
        given = self.arguments(*items)
        return Items(given, depth=_above(*given))

    def entry(self, key: Term, value: Term) -> tuple[Term, Term]:
        return key, value

    def entries(self, *entries: tuple[Term, Term] | None) -> Term:
        given = tuple(one for one in entries if one is not None)
        return MapTerm(given, depth=_above(*(node for entry in given for node in entry)))

    def integer(self, token: Token) -> Term:
        return Const(integer(token))

    def unsigned(self, token: Token) -> Term:
        return Const(unsigned(token))

    def double(self, token: Token) -> Term:
        return Const(float(token))

    def text(self, token: Token) -> Term:
        return Const(text_of(token))

    def true(self) -> Term:
        return Const(value=True)

    def false(self) -> Term:
        return Const(value=False)

    def null(self) -> Term:
        return Const(None)


def _unreserved(name: Token) -> str:
    if name in _RESERVED:
        raise CompileError(f"syntax: {name!s} is a reserved word")
    return str(name)


@lru_cache(maxsize=1)
def _parser() -> Lark:
    """Made at the first expression: it takes some 50 ms, which most commands need not spend."""
    return Lark(_GRAMMAR, parser="lalr", transformer=_Builder(), maybe_placeholders=False)
