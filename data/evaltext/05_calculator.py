"""
calculator
==========

Tokenise, parse and evaluate arithmetic with variables::

    >>> evaluate("2 + 3 * (4 - 1)")
    11
    >>> evaluate("-2 ^ 2")
    -4
    >>> evaluate("2 ^ 3 ^ 2")
    512
    >>> evaluate("price * (1 + vat)", {"price": 50, "vat": 0.2})
    60.0

The parser is a precedence climber: one loop, one table, no grammar tool.
"""

import operator
import re
from typing import NamedTuple


class Token(NamedTuple):
    kind: str
    text: str
    column: int


class CalcError(Exception):
    """A problem in the expression, with the column where it was noticed."""

    def __init__(self, message, column):
        super().__init__(f"{message} at column {column}")
        self.column = column


TOKEN_SPEC = [
    ("NUMBER", r"\d+(?:\.\d*)?|\.\d+"),
    ("NAME", r"[A-Za-z_]\w*"),
    ("OP", r"[-+*/%^()]"),
    ("SPACE", r"\s+"),
    ("WRONG", r"."),
]
SCANNER = re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in TOKEN_SPEC))

# operator -> (binding power, right associative?, function)
BINARY = {
    "+": (10, False, operator.add),
    "-": (10, False, operator.sub),
    "*": (20, False, operator.mul),
    "/": (20, False, operator.truediv),
    "%": (20, False, operator.mod),
    "^": (40, True, operator.pow),
}
UNARY_POWER = 30


def tokenise(source):
    for match in SCANNER.finditer(source):
        kind = match.lastgroup
        if kind == "WRONG":
            raise CalcError(f"unexpected {match.group()!r}", match.start() + 1)
        if kind != "SPACE":
            yield Token(kind, match.group(), match.start() + 1)
    yield Token("END", "", len(source) + 1)


class Parser:
    def __init__(self, source, names):
        self.tokens = list(tokenise(source))
        self.position = 0
        self.names = names

    @property
    def current(self):
        return self.tokens[self.position]

    def advance(self):
        token = self.current
        self.position += 1
        return token

    def expect(self, text):
        if self.current.text != text:
            found = self.current.text or "the end"
            raise CalcError(f"expected {text!r} but found {found}", self.current.column)
        return self.advance()

    def expression(self, minimum=0):
        left = self.operand()
        while self.current.text in BINARY:
            power, right_associative, apply = BINARY[self.current.text]
            if power < minimum:
                break
            sign = self.advance()
            right = self.expression(power if right_associative else power + 1)
            try:
                left = apply(left, right)
            except ZeroDivisionError:
                raise CalcError("division by zero", sign.column) from None
        return left

    def operand(self):
        token = self.advance()
        if token.kind == "NUMBER":
            return float(token.text) if "." in token.text else int(token.text)
        if token.text == "-":
            return -self.expression(UNARY_POWER)
        if token.text == "(":
            inside = self.expression()
            self.expect(")")
            return inside
        if token.kind == "NAME":
            return self.lookup(token)
        raise CalcError("a value is missing", token.column)

    def lookup(self, token):
        if token.text not in self.names:
            raise CalcError(f"unknown name {token.text}", token.column)
        return self.names[token.text]


def evaluate(source, names=None):
    parser = Parser(source, names or {})
    value = parser.expression()
    if parser.current.kind != "END":
        raise CalcError(f"did not expect {parser.current.text!r}", parser.current.column)
    return value


def demo():
    answers = [evaluate("7.5 % (5 - 3)"), evaluate("10 - 4 - 3"), evaluate("2 ^ -1")]
    for broken in ("2 +", "3 $ 4", "(1 + 2", "1 / 0"):
        try:
            evaluate(broken)
        except CalcError as error:
            answers.append(str(error))
    return answers
