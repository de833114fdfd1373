r"""Tokens -> syntax tree: a Pratt parser that consumes every token or says why it cannot.

LaTeX, Unicode, calculator and Python notation share one grammar. Nothing is evaluated here.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

from rewardkit.units import UNIT_NAMES, read_unit
from rewardkit.verifiers.math.functions import BARE_GREEK, INVERSE, NAMES, TAKES_BARE, UNKNOWN
from rewardkit.verifiers.math.gate import MAX_DEPTH, MAX_DIGITS, MAX_ITEMS, Refused, TooLarge
from rewardkit.verifiers.math.tokens import Token, tokenize
from rewardkit.verifiers.math.tree import (
    INF,
    MINUS_ONE,
    ONE,
    PI,
    TWO,
    ZERO,
    Add,
    Big,
    Builder,
    Cases,
    Const,
    E,
    Expr,
    Fn,
    I,
    Interval,
    Matrix,
    Measure,
    Mul,
    NamedSet,
    Node,
    Num,
    PlusMinus,
    Pow,
    Ratio,
    Rel,
    Residue,
    Seq,
    SetOp,
    Sym,
    Text,
    contains,
    negated,
)  # fmt: skip

_REL, _RATIO, _MOD, _SET, _UNIT, _SUM, _PRODUCT, _SIGN, _POWER = 10, 12, 14, 20, 25, 30, 40, 45, 60
_SUMS = {"+", "-", "pm", "mp"}
_SETS = {"cup": "union", "cap": "intersection", "setminus": "difference"}
_SETS_OF_NUMBERS = frozenset("RZNQC")
_DECORATIONS = frozenset(
    [
        "vec",
        "hat",
        "bar",
        "overline",
        "tilde",
        "dot",
        "ddot",
        "overrightarrow",
        "overleftarrow",
        "widehat",
        "widetilde",
        "underbar",
        "overarc",
        "wideparen",
        "overset",
        "underset",
        "stackrel",
        "angle",
        "triangle",
    ]
)
_ENDS = frozenset(("\\", "end", "hline", "ldots", "cdots", "dots"))
_MATRICES = frozenset(["matrix", "pmatrix", "bmatrix", "Bmatrix", "array", "vmatrix", "Vmatrix", "smallmatrix"])
_EXPRESSIONS = (Num, Sym, Const, Add, Mul, Pow, Fn, PlusMinus, Big, Matrix, Cases)
_CLOSED_BY = {"(": ")", "[": "]", "{": "}", "\\{": "\\}", "<": ">", "floor": "floor", "ceil": "ceil"}


@lru_cache(maxsize=4096)
def parse_tree(text: str) -> Node:
    """Return the tree of a normalised text.

    Raises:
        Refused: It is no such notation, or over a limit.
    """
    parser = _Parser(text, tokenize(text))
    try:
        return parser.whole()
    except RecursionError:
        raise TooLarge("nested too deeply") from None


class _Parser:
    def __init__(self, text: str, tokens: list[Token]) -> None:
        self.text = text
        self.tokens = tokens
        self.at = 0
        self.depth = 0
        self.bars = 0
        self.reversed = 0

    # -- walking

    @property
    def next(self) -> Token:
        return self.tokens[self.at]

    def take(self) -> Token:
        token = self.tokens[self.at]
        if token.kind != "end":
            self.at += 1
        return token

    def sees(self, kind: str, text: str | None = None) -> bool:
        token = self.tokens[self.at]
        return token.kind == kind and (text is None or token.text == text)

    def accept(self, kind: str, text: str | None = None) -> bool:
        if self.sees(kind, text):
            self.at += 1
            return True
        return False

    def expect(self, kind: str, text: str) -> None:
        if not self.accept(kind, text):
            raise self.unexpected(f"{text!r} is missing")

    def unexpected(self, wanted: str = "") -> Refused:
        token = self.next
        here = "the end" if token.kind == "end" else repr(self.text[token.start : token.end][:24])
        return Refused(f"{wanted} at {here}" if wanted else f"{here} has no meaning here")

    # -- levels

    def whole(self) -> Node:
        if self.sees("end"):
            raise Refused("nothing is there")
        node = self.statements()
        if self.sees("op", "over") or self.sees("op", "choose"):
            node = self.over(node, "")
        if not self.sees("end"):
            raise self.unexpected()
        return node

    def statements(self) -> Node:
        """Items with commas, semicolons, "and", "or" between them."""
        items: list[Node] = []
        joins: list[str] = []
        while True:
            items.append(self.expression(0))
            if len(items) > MAX_ITEMS:
                raise TooLarge(f"more than {MAX_ITEMS} items")
            join = ""
            while self.next.kind in ("sep", "join"):
                token = self.take()
                join = token.text if token.kind == "join" else join or token.text
            if not join:
                break
            if self.next.kind in ("end", "close"):
                raise self.unexpected("an item is missing")
            joins.append(join)
        return _joined(items, joins)

    def expression(self, power: int) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise TooLarge(f"nested more than {MAX_DEPTH} deep")
        left = self.prefix()
        while True:
            following = self.infix(left, power)
            if following is None:
                break
            left = following
        self.depth -= 1
        return left

    def operand(self, power: int) -> Expr:
        return self.scalar(self.expression(power))

    def scalar(self, node: Node) -> Expr:
        if isinstance(node, _EXPRESSIONS):
            return node
        raise Refused(f"a {type(node).__name__.lower()} stands where a value is wanted")

    # -- what stands between operands

    def infix(self, left: Node, power: int) -> Node | None:
        token = self.next
        kind, text = token.kind, token.text
        if kind == "rel":
            return None if power > _REL else self.relation(left)
        if kind == "op":
            return self.operator(left, text, power)
        if kind in ("end", "close", "sep", "join"):
            return None
        if power <= _UNIT and (measured := self.unit(left)) is not None:
            return measured
        if kind == "text":
            if power > _UNIT:
                return None
            raise self.unexpected()
        if power <= _PRODUCT and self.starts_factor(token):
            return self.juxtaposed(left)
        return None

    def operator(self, left: Node, text: str, power: int) -> Node | None:
        if text == "^":
            if power > _POWER:
                return None
            return self.raised(left)
        if text in ("!", "°", "'"):
            return self.postfix(left, text)
        if text == "%":
            return self.percent(left) if power <= _UNIT else None
        if text in ("*", "/", "circ"):
            if power > _PRODUCT:
                return None
            self.take()
            if text == "circ":
                raise Refused("a composition of functions is not compared")
            right = self.operand(_PRODUCT + 1)
            return self.product(left, Pow(right, MINUS_ONE) if text == "/" else right)
        if text in _SUMS:
            if power > _SUM:
                return None
            self.take()
            right = self.operand(_SUM + 1)
            if text == "-":
                right = negated(right)
            elif text != "+":
                right = PlusMinus(right, 1 if text == "pm" else -1)
            value = self.scalar(left)
            return Add((*value.terms, right)) if isinstance(value, Add) and power <= _SUM else Add((value, right))
        if text in _SETS:
            if power > _SET:
                return None
            self.take()
            right_set = self.expression(_SET + 1)
            op = _SETS[text]
            if isinstance(left, SetOp) and left.op == op == "union":
                return SetOp(op, (*left.parts, right_set))
            return SetOp(op, (left, right_set))
        if text == ":":
            return None if power > _RATIO else self.ratio(left)
        if text in ("mod", "pmod"):
            return None if power > _MOD else self.residue(left)
        if text in ("|", "||"):
            if self.bars or power > _PRODUCT:
                return None
            return self.juxtaposed(left)
        if text == "~":
            return None if power > _REL else self.relation(left)
        if text in ("over", "choose", "to", "->", "&", "_"):
            return None
        raise self.unexpected()

    def relation(self, left: Node) -> Node:
        items, ops = [left], []
        while self.next.kind == "rel" or self.sees("op", "~"):
            op = self.take().text
            if op in ("<=", ">=") and self.sees("rel", "="):  # "\le =" is nothing
                raise self.unexpected()
            ops.append(op)
            items.append(self.expression(_REL + 1))
        return Rel(tuple(items), tuple(ops))

    def ratio(self, left: Node) -> Node:
        items = [self.scalar(left)]
        is_open = False
        while self.accept("op", ":"):
            if self.sees("cmd", "ldots") or self.sees("cmd", "cdots") or self.sees("cmd", "dots"):
                self.take()
                is_open = True
                break
            items.append(self.operand(_RATIO + 1))
        return Ratio(tuple(items), is_open)

    def residue(self, left: Node) -> Node:
        parens = self.take().text == "pmod"
        bracketed = self.sees("open", "(") or self.sees("open", "{")
        modulus = self.operand(_MOD + 1) if not parens or not bracketed else self.scalar(self.prefix())
        return Residue(left, modulus)

    def percent(self, left: Node) -> Node:
        self.take()
        if self.next.kind not in ("end", "sep", "join", "close", "rel"):
            raise self.unexpected()
        return Measure(self.scalar(left), "%")

    def postfix(self, left: Node, text: str) -> Node:
        self.take()
        value = self.scalar(left)
        if text == "!":
            double = self.accept("op", "!")
            return Fn("factorial2" if double else "factorial", (value,))
        if text == "°":
            if self.sees("run", "C") or self.sees("run", "F"):
                return Measure(value, "°" + self.take().text)
            return Mul((value, Fn("degree", ())))
        raise Refused("a prime stands behind no name")

    def raised(self, left: Node) -> Node:
        self.take()
        if isinstance(left, Matrix) and (self.sees("run", "T") or self.sees("cmd", "top")):
            self.take()
            return Matrix(tuple(zip(*left.rows, strict=True)))
        if self.sees("op", "*") or self.sees("op", "+"):
            raise self.unexpected()
        ordinal = self.ordinal(left)
        if ordinal is not None:
            return ordinal
        exponent = self.operand(_POWER)
        if isinstance(left, NamedSet):
            return NamedSet(f"{left.name}^{exponent}")
        return Pow(self.scalar(left), exponent)

    def ordinal(self, left: Node) -> Node | None:
        """Read 8^{\\text{th}}."""
        if not isinstance(left, Num):
            return None
        here = self.at
        braced = self.accept("open", "{")
        token = self.take()
        if (
            token.kind in ("run", "text")
            and token.text in ("th", "st", "nd", "rd")
            and (not braced or self.accept("close", "}"))
        ):
            return left
        self.at = here
        return None

    def product(self, left: Node, right: Expr) -> Node:
        if isinstance(left, (Seq, Interval)) and isinstance(right, _EXPRESSIONS):
            raise Refused("a list or set is multiplied")
        value = self.scalar(left)
        if isinstance(value, Mul):
            return Mul((*value.factors, right))
        return Mul((value, right))

    def starts_factor(self, token: Token) -> bool:
        if token.kind == "cmd":
            return token.text not in _ENDS
        if token.kind == "open" and token.text == "[" and self.reversed:
            return False
        return token.kind in ("num", "run", "sym", "fn", "open")

    def juxtaposed(self, left: Node) -> Node:
        """Two operands side by side: a product, or a mixed number."""
        token = self.next
        if token.kind == "num":
            return self.number_behind(left, token)
        if isinstance(left, (Seq, Interval)) and not (isinstance(left, Seq) and token.kind in ("sym", "run")):
            raise self.unexpected("two lists or sets side by side")
        if token.kind == "cmd" and token.text in ("frac", "dfrac", "tfrac", "cfrac") and _is_whole(left):
            right = self.prefix()
            if isinstance(right, Mul) and _is_proper(right):
                return Add((self.scalar(left), right))
            return self.product(left, self.powered(right))
        return self.product(left, self.operand(_PRODUCT + 1))

    def powered(self, node: Node) -> Expr:
        while self.sees("op", "^") or self.sees("op", "!"):
            following = self.operator(node, self.next.text, _POWER)
            if following is None:
                break
            node = following
        return self.scalar(node)

    def number_behind(self, left: Node, token: Token) -> Node:
        """Only `2 1/2` may have a number right behind another; a number behind `)` or a letter is a factor."""
        if _is_whole(left):
            slash, below = self.tokens[self.at + 1 : self.at + 3] if self.at + 2 < len(self.tokens) else (None, None)
            if (
                token.spaced and slash is not None and below is not None and slash.text == "/" and below.kind == "num"
                and token.value is not None and below.value and not token.digits and not below.digits
                and token.value < below.value
            ):  # fmt: skip
                self.at += 3
                return Add((self.scalar(left), Mul((Num(token.value), Pow(Num(below.value), MINUS_ONE)))))
            raise self.unexpected("two numbers side by side")
        if isinstance(left, Num) or (isinstance(left, Mul) and isinstance(left.factors[-1], Num)):
            raise self.unexpected("two numbers side by side")
        previous = self.tokens[self.at - 1]
        if previous.kind in ("run", "sym") and not token.spaced:
            raise Refused(f"{previous.text}{token.text} is no product")
        return self.product(left, self.operand(_PRODUCT + 1))

    def unit(self, left: Node) -> Node | None:
        """Read a unit behind a value: up to the next comma, relation or bracket."""
        token = self.next
        if token.kind != "text" and not self.is_unit_word(token, left):
            return None
        stop = self.at
        while self.tokens[stop].kind not in ("end", "sep", "join", "close", "rel"):
            if self.tokens[stop].kind == "open":
                stop += self.braced_power(stop)
                continue
            stop += 1
        raw = self.text[token.start : self.tokens[stop - 1].end]
        unit = read_unit(_unit_text(raw))
        if unit is None:
            return None
        self.at = stop
        return Measure(left, unit) if unit else left

    def is_unit_word(self, token: Token, left: Node) -> bool:
        """Whether bare letters behind a value may be a unit: a known one, or a word behind a space."""
        if token.kind not in ("run", "fn") or not isinstance(left, (Num, Add, Mul, Pow, Fn, Const)):
            return False
        if not contains(left, Num, Const) or len(token.text) < 2:
            return False
        return token.text in UNIT_NAMES or (len(token.text) >= 4 and token.spaced)

    def braced_power(self, at: int) -> int:
        """Return how many tokens a `{2}` or `{-1}` takes."""
        for length in (3, 4):
            if at + length <= len(self.tokens) and self.tokens[at + length - 1].text == "}":
                return length
        return 1

    # -- operands

    def prefix(self) -> Node:
        token = self.take()
        kind, text = token.kind, token.text
        if kind == "num":
            return self.number(token)
        if kind == "run":
            return self.letters(token)
        if kind == "sym":
            return self.symbol(text)
        if kind == "fn":
            return self.function(text)
        if kind == "open":
            return self.bracketed(text)
        if kind == "cmd":
            return self.command(text)
        if kind == "op":
            return self.signed(text)
        if kind == "close" and text == "]":
            return self.reversed_interval()
        if kind == "text":
            return self.words(token)
        self.at -= kind != "end"
        raise self.unexpected("a value is missing")

    def signed(self, text: str) -> Node:
        if text == "-":
            return negated(self.operand(_SIGN))
        if text == "+":
            return self.operand(_SIGN)
        if text in ("pm", "mp"):
            return PlusMinus(self.operand(_SIGN), 1 if text == "pm" else -1)
        if text in ("|", "||"):
            return self.bars_around(text)
        if text == "'" or text == "~":
            raise Refused(f"{text!r} stands before nothing")
        self.at -= 1
        raise self.unexpected("a value is missing")

    def bars_around(self, text: str) -> Node:
        self.bars += 1
        inner = self.expression(_SET)
        self.bars -= 1
        self.expect("op", text)
        if isinstance(inner, Matrix):
            return Fn("det", (inner,))
        if isinstance(inner, Seq):
            raise Refused("bars around a list")
        return Fn("abs", (self.scalar(inner),))

    def number(self, token: Token) -> Node:
        value = token.value
        if value is None:
            raise self.unexpected()
        if self.sees("cmd", "overline") or self.sees("cmd", "bar") or self.sees("cmd", "dot"):
            return self.repeating(token)
        if self.sees("op", "_"):
            raise Refused("a subscript stands behind a number")
        return Num(value, token.digits)

    def repeating(self, token: Token) -> Node:
        before, point, fixed = token.text.partition(".")
        if not point:
            if self.text[token.end : token.end + 1] != "\\":
                raise self.unexpected()
            # 0.\overline{3} comes as "0" and "." when no digit follows the point
            raise self.unexpected("no decimal point stands before the repeating digits")
        self.take()
        self.expect("open", "{")
        cycle = self.take()
        self.expect("close", "}")
        return _repeating(before, fixed, cycle.text)

    def letters(self, token: Token) -> Node:
        """One letter is a variable; a few side by side are a product; a word is none."""
        text = token.text
        if text in BARE_GREEK:
            return self.symbol(text)
        if text == "pi":
            return self.constant(PI)
        if len(text) == 1:
            return self.letter(text)
        if text in ("DNE", "NaN", "None", "none", "null", "nan"):
            raise Refused(f"{text!r} is no value")
        if len(text) > 4 or (len(text) == 4 and any(letter in "aeiou" for letter in text[1:3])):
            raise Refused(f"{text!r} is a word")
        if text.endswith("pi") and len(text) <= 3:
            return Mul((self.scalar(self.letter(text[0])), self.scalar(self.constant(PI))))
        tail = self.tokens[self.at - 1]
        split = [
            Token("run", letter, token.start + place, token.start + place + 1, place == 0 and token.spaced)
            for place, letter in enumerate(text)
        ]
        self.tokens[self.at - 1 : self.at] = split
        del tail
        return self.letter(text[0])

    def letter(self, text: str) -> Node:
        if text == "e" and not self.sees("op", "_"):
            return self.constant(E)
        if text == "i" and not self.sees("op", "_") and not self.sees("op", "'"):
            return self.constant(I)
        if self.sees("open", "(") and self.tokens[self.at + 1].text == ")":
            self.at += 2  # a function whose argument was lost or left out: only its name is known
            return Sym(text + "()")
        if text in "CPA" and self.sees("open", "(") and not self.next.spaced and self.has_comma():
            args = tuple(map(self.scalar, self.arguments()))
            return Fn("binomial" if text == "C" and len(args) == 2 else "call " + text, args)
        if text in UNKNOWN and (self.sees("open", "(") and not self.next.spaced):
            name = self.primed(text)
            return Fn("call " + name, tuple(map(self.scalar, self.arguments())))
        if text in "CAP" and self.sees("op", "_"):
            combination = self.combination(text)
            if combination is not None:
                return combination
        return self.symbol(text)

    def combination(self, text: str) -> Node | None:
        """Read C_n^k: the number of combinations; A_n^k and P_n^k arrangements."""
        here = self.at
        lower = self.script_value("_")
        if lower is not None and self.sees("op", "^"):
            upper = self.script_value("^")
            if isinstance(lower, Num) and isinstance(upper, Num) and upper.value <= lower.value:
                chosen = Fn("binomial", (lower, upper))
                return chosen if text == "C" else Mul((chosen, Fn("factorial", (upper,))))
        self.at = here
        return None

    def script_value(self, mark: str) -> Expr | None:
        self.expect("op", mark)
        node = self.group() if self.sees("open", "{") else self.prefix()
        return node if isinstance(node, _EXPRESSIONS) else None

    def constant(self, value: Const) -> Node:
        return value

    def symbol(self, name: str) -> Node:
        if self.sees("op", "_"):
            name += "_" + self.subscript()
        return Sym(self.primed(name))

    def primed(self, name: str) -> str:
        while self.accept("op", "'"):
            name += "'"
        return name

    def subscript(self) -> str:
        self.take()
        start = self.at
        if self.accept("open", "{"):
            depth = 1
            while depth:
                token = self.take()
                if token.kind == "end":
                    raise self.unexpected("a subscript is not closed")
                depth += (token.text == "{") - (token.text == "}")
            inside = self.tokens[start + 1 : self.at - 1]
        else:
            token = self.take()
            if token.kind not in ("num", "run", "sym", "text", "cmd") and token.text != "*":
                self.at -= 1
                raise self.unexpected("a subscript is missing")
            if token.kind == "run" and len(token.text) > 1:
                # x_ab is x_a b
                self.tokens[self.at - 1 : self.at] = [
                    Token("run", letter, token.start + place, token.start + place + 1)
                    for place, letter in enumerate(token.text)
                ]
                token = self.tokens[self.at - 1]
            elif token.kind == "num" and len(token.text) > 1 and not token.text.isdigit():
                raise self.unexpected("a subscript is missing")
            inside = [token]
        name = "".join(token.text for token in inside)
        if not name:
            raise Refused("a subscript is empty")
        return name

    def words(self, token: Token) -> Node:
        raise Refused(f"{token.text[:24]!r} is a word")

    # -- functions

    def function(self, name: str) -> Node:
        canonical = NAMES[name]
        exponent: Expr | None = None
        base: Expr | None = None
        for _ in range(2):
            if self.sees("op", "^") and exponent is None:
                self.take()
                exponent = self.scalar(self.group() if self.sees("open", "{") else self.prefix())
            elif self.sees("op", "_") and base is None and canonical in ("log", "max", "min"):
                self.take()
                base = self.scalar(self.group() if self.sees("open", "{") else self.prefix())
        args = self.function_arguments(canonical)
        if exponent == MINUS_ONE and canonical in INVERSE:
            canonical, exponent = INVERSE[canonical], None
        node = _call(canonical, args, base)
        return node if exponent is None else Pow(node, exponent)

    def function_arguments(self, name: str) -> tuple[Expr, ...]:
        if name == "sqrt" and self.sees("open", "["):
            self.take()
            index = self.operand(0)
            self.expect("close", "]")
            return (self.scalar(self.group()) if self.sees("open", "{") else self.one_factor(), index)
        if self.sees("open", "(") or self.sees("open", "["):
            return tuple(map(self.scalar, self.arguments()))
        if self.sees("open", "{"):
            node = self.group()
            return (self.scalar(node),) if not isinstance(node, Seq) else tuple(map(self.scalar, node.items))
        if name not in TAKES_BARE:
            raise self.unexpected(f"{name} has no argument")
        if name in ("sqrt", "cbrt"):
            return (self.one_factor(),)
        return (self.bare_argument(),)

    def one_factor(self) -> Expr:
        return self.operand(_POWER + 1)

    def bare_argument(self) -> Expr:
        """Read what stands behind `\\sin`: factors side by side, up to an operator or another function."""
        if self.accept("op", "-"):
            return negated(self.bare_argument())
        value = self.operand(_PRODUCT + 2)
        while (
            self.starts_factor(self.next)
            and self.next.kind not in ("fn", "num")
            and not (self.next.kind == "open" and self.next.text != "(")
        ):
            if self.next.kind == "open" and not isinstance(value, Num):
                break
            if self.next.kind == "cmd" and self.next.text not in ("pi", "frac", "dfrac", "tfrac", "sqrt"):
                break
            value = self.scalar(self.product(value, self.operand(_PRODUCT + 2)))
        if self.accept("op", "°"):
            value = Mul((value, Fn("degree", ())))
        return value

    def arguments(self) -> list[Node]:
        closed = _CLOSED_BY[self.take().text]
        if self.accept("close", closed):
            return []
        bars, self.bars = self.bars, 0
        node = self.statements()
        self.bars = bars
        self.expect("close", closed)
        return list(node.items) if isinstance(node, Seq) and node.kind == "list" else [node]

    # -- brackets

    def group(self) -> Node:
        """Read {…} as LaTeX's argument: one value."""
        self.expect("open", "{")
        if self.sees("close", "}"):
            raise self.unexpected("an argument is empty")
        bars, self.bars = self.bars, 0
        node = self.statements()
        if self.sees("op", "over") or self.sees("op", "choose"):
            node = self.over(node, "}")
        self.bars = bars
        self.expect("close", "}")
        return node

    def argument(self) -> Node:
        """Read a command's argument: a group, or one token (one digit of a number)."""
        if self.sees("open", "{"):
            return self.group()
        token = self.next
        if token.kind == "num" and len(token.text) > 1 and token.text.isdigit():
            rest = token.text[1:]
            self.tokens[self.at : self.at + 1] = [
                Token("num", token.text[0], token.start, token.start + 1, token.spaced, Fraction(int(token.text[0]))),
                Token("num", rest, token.start + 1, token.end, False, Fraction(int(rest))),
            ]
        elif token.kind == "run" and len(token.text) > 1 and token.text != "pi":
            self.tokens[self.at : self.at + 1] = [
                Token("run", token.text[0], token.start, token.start + 1, token.spaced),
                Token("run", token.text[1:], token.start + 1, token.end),
            ]
        if self.next.kind not in ("num", "run", "sym", "cmd"):
            raise self.unexpected("an argument is missing")
        return self.prefix()

    def over(self, left: Node, closed: str) -> Node:
        what = self.take().text
        right = self.scalar(self.statements())
        top = self.scalar(left)
        return Fn("binomial", (top, right)) if what == "choose" else Mul((top, Pow(right, MINUS_ONE)))

    def bracketed(self, opening: str) -> Node:
        self.at -= 1
        if opening == "{":
            return self.braces()
        if opening == "\\{":
            return self.set_of("\\}")
        self.take()
        closed = _CLOSED_BY[opening]
        if opening in ("floor", "ceil"):
            inner = self.expression(_SET)
            self.expect("close", closed)
            return Fn(opening, (self.scalar(inner),))
        if self.accept("close", closed):
            raise Refused("brackets with nothing in them")
        bars, self.bars = self.bars, 0
        node = self.statements()
        self.bars = bars
        return self.closed(opening, closed, node)

    def closed(self, opening: str, closed: str, node: Node) -> Node:
        other = {"(": "]", "[": ")"}.get(opening)
        pair = node.items if isinstance(node, Seq) and node.kind == "list" else ()
        if opening == "[" and self.sees("open", "[") and len(pair) == 2:  # [2,5[
            self.take()
            return Interval(pair[0], pair[1], True, False)
        if other is not None and self.sees("close", other) and len(pair) == 2:
            self.take()
            return Interval(pair[0], pair[1], opening == "[", other == "]")
        self.expect("close", closed)
        if isinstance(node, Seq) and node.kind == "list":
            kind = {"(": "tuple", "[": "bracket", "<": "tuple"}[opening]
            return _nested(node.items) or Seq(kind, node.items)
        if opening == "<":
            return Seq("tuple", (node,))
        if opening == "[":
            return node if not isinstance(node, (Seq, Rel)) else Seq("bracket", (node,))
        return node

    def reversed_interval(self) -> Node:
        """Read ]2,5[ and ]2,5]."""
        self.reversed += 1
        node = self.statements()
        self.reversed -= 1
        pair = node.items if isinstance(node, Seq) and node.kind == "list" else ()
        if len(pair) != 2:
            raise self.unexpected()
        if self.accept("open", "["):
            return Interval(pair[0], pair[1], False, False)
        self.expect("close", "]")
        return Interval(pair[0], pair[1], False, True)

    def braces(self) -> Node:
        """Read {…} that may group, or be a set whose backslashes were lost."""
        if self.has_bar("{", "}"):
            return self.set_of("}")
        self.take()
        if self.accept("close", "}"):
            if self.sees("op", "^") or self.sees("op", "_"):
                raise Refused("an index stands on nothing")
            raise Refused("empty braces")
        bars, self.bars = self.bars, 0
        node = self.statements()
        if self.sees("op", "over") or self.sees("op", "choose"):
            node = self.over(node, "}")
        self.bars = bars
        self.expect("close", "}")
        if isinstance(node, Seq) and node.kind == "list":
            return Seq("set", node.items)
        return node

    def has_comma(self) -> bool:
        """Whether the bracket that opens here holds several arguments."""
        depth = 0
        for token in self.tokens[self.at :]:
            depth += (token.kind == "open") - (token.kind == "close")
            if depth <= 0:
                return False
            if depth == 1 and token.kind == "sep":
                return True
        return False

    def has_bar(self, opening: str, closed: str) -> bool:
        """Whether braces hold exactly one bar, so that they define a set."""
        depth = count = 0
        for token in self.tokens[self.at :]:
            if token.kind == "open":
                depth += 1
            elif token.kind == "close":
                depth -= 1
                if not depth:
                    break
            elif depth == 1 and token.kind == "op" and token.text in ("|", ":"):
                count += 1
        return count == 1

    def set_of(self, closed: str) -> Node:
        opening = self.next.text
        builder = self.has_bar(opening, closed)
        self.take()
        if self.accept("close", closed):
            return NamedSet("")
        bars, self.bars = self.bars, int(builder)
        if builder:
            shape = self.expression(_RATIO + 1)
            if isinstance(shape, Seq) and len(shape.items) == 1:
                shape = shape.items[0]
            if self.accept("rel", "in"):
                shape = Rel((shape, self.expression(_RATIO + 1)), ("in",))
            if not (self.accept("op", "|") or self.accept("op", ":")):
                raise self.unexpected()
            self.bars = 0
            condition = self.statements()
            self.bars = bars
            self.expect("close", closed)
            return Builder(shape, condition)
        node = self.statements()
        self.bars = bars
        self.expect("close", closed)
        return Seq("set", node.items if isinstance(node, Seq) and node.kind in ("list", "and", "or") else (node,))

    # -- commands

    def command(self, name: str) -> Node:
        if name in ("frac", "dfrac", "tfrac", "cfrac"):
            return self.fraction()
        if name == "sqrt":
            return _call("sqrt", self.function_arguments("sqrt"), None)
        if name in ("binom", "dbinom", "tbinom"):
            return Fn("binomial", (self.scalar(self.argument()), self.scalar(self.argument())))
        if name == "pi":
            return self.constant(PI)
        if name == "infty":
            return INF
        if name in ("emptyset", "varnothing"):
            return NamedSet("")
        if name == "mathbb":
            return self.blackboard()
        if name == "begin":
            return self.environment()
        if name in ("sum", "prod", "int", "lim", "iint", "oint"):
            return self.big(name)
        if name in _DECORATIONS:
            return self.decorated(name)
        if name in ("ldots", "cdots", "dots", "dotsc", "dotsb"):
            return Text("…")
        if name in ("i", "imath"):
            return I
        if name == "cbrt":
            return _call("cbrt", self.function_arguments("cbrt"), None)
        if name in ("max", "min"):
            return self.function(name)
        if name in ("infin",):
            return INF
        raise Refused(f"\\{name[:24]} is not known")

    def fraction(self) -> Node:
        if self.derivative_ahead():
            return self.derivative()
        top = self.scalar(self.argument())
        bottom = self.scalar(self.argument())
        return Mul((top, Pow(bottom, MINUS_ONE)))

    def derivative_ahead(self) -> bool:
        tokens = self.tokens[self.at : self.at + 6]
        shape = [token.text for token in tokens]
        return (
            len(shape) >= 6
            and shape[0] == "{"
            and shape[1] == "d"
            and shape[2] == "}"
            and shape[3] == "{"
            and (len(shape[4]) == 2 and shape[4][0] == "d" and shape[5] == "}")
        )

    def derivative(self) -> Node:
        var = self.tokens[self.at + 4].text[1]
        self.at += 6
        return Big("diff", var, None, None, self.operand(_PRODUCT))

    def blackboard(self) -> Node:
        braced = self.accept("open", "{")
        token = self.take()
        if token.text not in _SETS_OF_NUMBERS or (braced and not self.accept("close", "}")):
            self.at -= 1
            raise self.unexpected("no set of numbers")
        name = token.text
        for mark in ("^", "_"):
            if self.accept("op", mark):
                inner = self.take()
                if inner.text == "{":
                    inner = self.take()
                    self.expect("close", "}")
                name += mark + inner.text
        return NamedSet(name)

    def decorated(self, name: str) -> Node:
        if name in ("angle", "triangle"):
            token = self.take()
            if token.kind not in ("run", "sym"):
                raise self.unexpected(f"\\{name} has no argument")
            return Sym(f"{name}({token.text})")
        start = self.at
        if self.accept("open", "{"):
            depth = 1
            while depth:
                token = self.take()
                if token.kind == "end":
                    raise self.unexpected(f"\\{name} is not closed")
                depth += (token.text == "{") - (token.text == "}")
            inner = "".join(token.text for token in self.tokens[start + 1 : self.at - 1])
        else:
            inner = self.take().text
        if not inner:
            raise Refused(f"\\{name} has an empty argument")
        label = f"{name}({inner})"
        return self.symbol(label)

    def environment(self) -> Node:
        name = self.environment_name()
        if name in _MATRICES:
            if name == "array" and self.sees("open", "{"):
                while not self.accept("close", "}"):
                    if self.take().kind == "end":
                        raise self.unexpected()
            matrix = Matrix(tuple(tuple(map(self.scalar, row)) for row in self.table(name)))
            if len({len(row) for row in matrix.rows}) != 1:
                raise Refused("a matrix with rows of different lengths")
            return Fn("det", (matrix,)) if name == "vmatrix" else matrix
        if name in ("cases", "dcases", "rcases"):
            return self.cases(self.table(name))
        if name in ("aligned", "align", "gathered", "split", "align*"):
            return _joined([_line(row) for row in self.table(name)], [","] * 99)
        raise Refused(f"the environment {name[:24]} is not known")

    def environment_name(self) -> str:
        self.expect("open", "{")
        name = ""
        while not self.sees("close", "}"):
            token = self.take()
            if token.kind == "end":
                raise self.unexpected()
            name += token.text
        self.take()
        return name

    def table(self, name: str) -> list[list[Node]]:
        rows: list[list[Node]] = [[]]
        bars, self.bars = self.bars, 0
        while True:
            if self.sees("cmd", "\\"):
                self.take()
                rows.append([])
            elif self.sees("cmd", "hline"):
                self.take()
            elif self.sees("cmd", "end"):
                self.take()
                if self.environment_name() != name:
                    raise Refused(f"\\begin{{{name}}} is not closed")
                break
            elif self.accept("op", "&"):
                if not rows[-1]:
                    raise Refused("an empty cell")
            elif self.accept("sep"):
                continue
            else:
                rows[-1].append(self.cell())
            if sum(map(len, rows)) > MAX_ITEMS:
                raise TooLarge(f"more than {MAX_ITEMS} cells")
        self.bars = bars
        if not rows[-1]:
            rows.pop()
        if not rows or not all(rows):
            raise Refused("an empty row")
        return rows

    def cell(self) -> Node:
        if self.next.kind == "text":
            word = self.take().text.strip(" ,:").lower()
            if word in ("if", "for", "when", "where", "otherwise", "else", "if otherwise"):
                if self.sees("cmd", "\\") or self.sees("cmd", "end"):
                    return Text("otherwise")
                return self.cell()
            raise self.unexpected()
        return self.expression(0)

    def cases(self, rows: list[list[Node]]) -> Node:
        if all(len(row) == 1 for row in rows):
            return _joined([row[0] for row in rows], [","] * (len(rows) - 1))
        if any(len(row) != 2 for row in rows):
            raise Refused("a case has no condition")
        return Cases(tuple((row[0], row[1]) for row in rows))

    def big(self, name: str) -> Node:
        low: Node | None = None
        high: Expr | None = None
        for _ in range(2):
            if self.accept("op", "_"):
                low = self.limits()
            elif self.accept("op", "^"):
                high = self.scalar(self.argument())
        if name in ("int", "iint", "oint"):
            return self.integral(low, high)
        if name == "lim":
            if not isinstance(low, Rel) or low.ops != ("to",) or not isinstance(low.items[0], Sym):
                raise Refused("a limit without a point")
            return Big("lim", low.items[0].name, self.scalar(low.items[1]), high, self.operand(_PRODUCT))
        if not isinstance(low, Rel) or low.ops != ("=",):
            raise Refused(f"\\{name} has no bounds")
        index = low.items[0]
        var = "i" if index == I else index.name if isinstance(index, Sym) else ""
        if not var:
            raise Refused(f"\\{name} has no index")
        body = self.operand(_PRODUCT)
        if var == "i":
            body = _with_index(body)
        return Big(name, var, self.scalar(low.items[1]), high, body)

    def limits(self) -> Node:
        braced = self.accept("open", "{")
        if not braced:
            return self.prefix()
        node: Node = self.expression(0)
        if self.accept("op", "to") or self.accept("op", "->"):
            point = self.expression(0)
            if self.accept("op", "^"):
                self.take()
            node = Rel((node, point), ("to",))
        self.expect("close", "}")
        return node

    def integral(self, low: Node | None, high: Expr | None) -> Node:
        """Read the integrand up to its `d x`."""
        depth = 0
        for place in range(self.at, len(self.tokens)):
            token = self.tokens[place]
            depth += (token.kind == "open") - (token.kind == "close")
            if token.kind == "end" or depth < 0:
                break
            text = token.text
            following = self.tokens[place + 1]
            if depth or token.kind != "run":
                continue
            if len(text) >= 2 and text[-2] == "d" and text.isalpha():
                parts = [text[:-2], "", text[-1]]
            elif text == "d" and following.kind in ("run", "sym") and len(following.text) >= 1:
                parts = ["", "", following.text]
            else:
                continue
            var = parts[2]
            stop = place + (2 if text == "d" else 1)
            body = self.tokens[self.at : place]
            if parts[0]:
                body = [*body, token._replace(text=parts[0])]
            if not body:
                integrand: Expr = ONE
            else:
                inner = _Parser(self.text, [*body, Token("end", "", token.start, token.start)])
                inner.depth = self.depth
                node = inner.expression(0)
                if not inner.sees("end"):
                    raise inner.unexpected()
                integrand = self.scalar(node)
            self.at = stop
            if low is None:
                return Big("antiderivative", var, None, None, integrand)
            if high is None:
                raise Refused("an integral without an upper bound")
            return Big("int", var, self.scalar(low), high, integrand)
        raise Refused("an integral without its variable")


# ---------------------------------------------------------------------------------------------- pieces


def _unit_text(raw: str) -> str:
    """Write a unit as read_unit wants it: no commands, braces or fonts."""
    text = raw
    for command in ("\\text", "\\mathrm", "\\textrm", "\\mbox", "\\operatorname", "\\textbf", "\\hbox", "\\rm"):
        text = text.replace(command, "")
    for sign in ("\\cdot", "\\times"):
        text = text.replace(sign, " ")
    return text.replace("{", "").replace("}", "").replace("\\Omega", "Ω").replace("\\%", "%").strip(" .,~")


def _is_whole(node: Node) -> bool:
    if isinstance(node, Mul) and len(node.factors) == 2 and node.factors[0] == MINUS_ONE:
        node = node.factors[1]
    return isinstance(node, Num) and node.value.denominator == 1 and not node.digits


def _is_proper(node: Mul) -> bool:
    """Whether a fraction consists of two positive whole numbers, as the fraction of a mixed number does."""
    if len(node.factors) != 2:
        return False
    top, bottom = node.factors
    return (
        isinstance(top, Num) and isinstance(bottom, Pow) and isinstance(bottom.base, Num)
        and not top.digits and not bottom.base.digits and 0 < top.value < bottom.base.value
    )  # fmt: skip


def _repeating(before: str, fixed: str, cycle: str) -> Num:
    if not cycle.isdigit() or len(before + fixed + cycle) > MAX_DIGITS:
        raise Refused("no repeating digits")
    start = int("0" + before + fixed)
    return Num(Fraction(int("0" + before + fixed + cycle) - start, 10 ** len(fixed) * (10 ** len(cycle) - 1)))


def _joined(items: list[Node], joins: list[str]) -> Node:
    if len(items) == 1:
        return items[0]
    joins = joins[: len(items) - 1]
    if "or" in joins:
        parts: list[Node] = []
        group = [items[0]]
        for join, item in zip(joins, items[1:], strict=True):
            if join == "and":
                group.append(item)
            else:
                parts.append(group[0] if len(group) == 1 else Seq("and", tuple(group)))
                group = [item]
        parts.append(group[0] if len(group) == 1 else Seq("and", tuple(group)))
        return Seq("or", tuple(parts))
    return Seq("and" if joins and set(joins) == {"and"} and len(items) > 1 else "list", tuple(items))


def _line(row: list[Node]) -> Node:
    if len(row) == 1:
        return row[0]
    raise Refused("an alignment with columns")


def _nested(items: tuple[Node, ...]) -> Matrix | None:
    """Return the matrix that [[1,2],[3,4]] is."""
    rows = [item.items for item in items if isinstance(item, Seq) and item.kind == "bracket"]
    if len(rows) != len(items) or len({len(row) for row in rows}) != 1:
        return None
    if not all(isinstance(cell, _EXPRESSIONS) for row in rows for cell in row):
        return None
    return Matrix(tuple(rows))  # type: ignore[arg-type]


def _with_index(node: Expr) -> Expr:
    """In a sum over i, i is the index and not the imaginary unit."""
    if node == I:
        return Sym("i")
    match node:
        case Add(terms):
            return Add(tuple(map(_with_index, terms)))
        case Mul(factors):
            return Mul(tuple(map(_with_index, factors)))
        case Pow(base, exponent):
            return Pow(_with_index(base), _with_index(exponent))
        case Fn(name, args):
            return Fn(name, tuple(map(_with_index, args)))
    return node


_ARITY = {
    "binomial": (2, 2),
    "gcd": (1, 16),
    "lcm": (1, 16),
    "max": (1, 64),
    "min": (1, 64),
    "log": (1, 2),
    "sqrt": (1, 2),
}


def _call(name: str, args: tuple[Expr, ...], base: Expr | None) -> Expr:
    fewest, most = _ARITY.get(name, (1, 1))
    if not fewest <= len(args) <= most:
        raise Refused(f"{name} of {len(args)} arguments")
    if name == "sqrt":
        index = args[1] if len(args) == 2 else TWO
        return Fn("root", (args[0], index))
    if name == "cbrt":
        return Fn("root", (args[0], Num(Fraction(3))))
    if name == "exp":
        return Pow(E, args[0])
    if name == "cis":
        return Pow(E, Mul((I, args[0])))
    if name == "lg":
        return Fn("log", (args[0], Num(Fraction(10))))
    if name == "ln":
        return Fn("ln", args)
    if name == "log":
        if base is not None:
            return Fn("log", (args[0], base))
        return Fn("log", args)
    if name in ("max", "min") and base is not None:
        raise Refused(f"{name} over something")
    return Fn(name, args)


__all__ = ["ZERO", "parse_tree"]
