"""Formulas: text -> rewards.

    0.8*gsm8k + 0.2*think_format(strict=True)
    gate(think_format, then='my_rewards.py:brief'(max_words=80), otherwise=-1)

Grammar: numbers, names, quoted paths, calls with named options, `+ - * ( )`. A formula is tokenised and built by
hand; nothing in it is ever evaluated. What a name means is the caller's business.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from rewardkit import compose
from rewardkit.compose import Reward
from rewardkit.errors import FormulaError

MAX_LENGTH = 10_000
MAX_DEPTH = 50

Resolve = Callable[[str, Mapping[str, Any]], Reward]
"""Returns the reward of a name or path with these options."""

_TOKEN = re.compile(
    r"""
    (?P<space>\s+)
  | (?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
  | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
  | (?P<mark>[-+*(){}\[\],:=])
    """,
    re.VERBOSE | re.DOTALL,
)
_COMBINATORS = ("gate", "minimum", "maximum", "clip", "first_of", "schedule")
_CONSTANTS = {"True": True, "true": True, "False": False, "false": False, "None": None, "null": None}


def build(text: str, resolve: Resolve) -> Reward:
    """Read a formula of at most 10,000 characters, nested at most 50 deep.

    Raises:
        FormulaError: The text is no formula; says where.
    """
    return _Parser(text, resolve).whole()


def too_long(text: str) -> FormulaError:
    """Return the error for a formula over the length limit."""
    return FormulaError(f"a formula has at most {MAX_LENGTH:,} characters, got {len(text):,}")


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


class _Parser:
    """Recursive descent over the tokens; builds rewards with the same operators that Python code uses."""

    def __init__(self, text: str, resolve: Resolve) -> None:
        if len(text) > MAX_LENGTH:
            raise too_long(text)
        self.text = text
        self.resolve = resolve
        self.tokens = self._tokens()
        self.place = 0
        self.depth = 0

    def whole(self) -> Reward:
        if self.peek.kind == "end":
            raise FormulaError("the formula is empty; write for example gsm8k + 0.1*think_format")
        try:
            result = self.reward()
        except ValueError as problem:  # numbers that are finite one by one
            raise FormulaError(str(problem)) from None
        if self.peek.kind != "end":
            raise self.wrong("an operator or the end")
        return result

    # -- tokens

    def _tokens(self) -> list[_Token]:
        tokens = []
        at = 0
        while at < len(self.text):
            match = _TOKEN.match(self.text, at)
            if match is None:
                self.tokens, self.place = [_Token("other", self.text[at], at)], 0
                raise self.wrong("a number, name, quoted path or one of + - * ( )")
            if match.lastgroup != "space":
                tokens.append(_Token(match.lastgroup or "", match.group(), at))
            at = match.end()
        tokens.append(_Token("end", "the end", len(self.text)))
        return tokens

    @property
    def peek(self) -> _Token:
        return self.tokens[self.place]

    def take(self, mark: str | None = None) -> _Token:
        token = self.peek
        if mark is not None and token.text != mark:
            raise self.wrong(repr(mark))
        self.place += 1
        return token

    def taken(self, mark: str) -> bool:
        if self.peek.kind == "mark" and self.peek.text == mark:
            self.place += 1
            return True
        return False

    def wrong(self, wanted: str) -> FormulaError:
        token = self.peek
        near = self.text[max(0, token.at - 20) : token.at + 20]
        hint = ""
        following = self.text[token.at + 1 :].lstrip()[:1]
        if token.text == "/" and (following.isdigit() or following in (".", "(")):
            hint = "; there is no division, multiply by the inverse"
        elif token.text in (":", "/", ".", "\\"):
            hint = "; a path or a plugin's name inside a formula is quoted: 'my_rewards.py:brief', 'dates/iso_day'"
        found = token.text if token.kind == "end" else repr(token.text)
        return FormulaError(f"wanted {wanted} at column {token.at + 1}, found {found} (near {near!r}){hint}")

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise FormulaError(f"the formula is nested more than {MAX_DEPTH} deep at column {self.peek.at + 1}")

    # -- arithmetic

    def expression(self) -> Reward | float:
        self.deeper()
        result = self.signed_term()
        while self.peek.kind == "mark" and self.peek.text in "+-":
            minus = self.take().text == "-"
            term = self.signed_term()
            result = result - term if minus else result + term
        self.depth -= 1
        return result

    def signed_term(self) -> Reward | float:
        negative = False
        while self.peek.kind == "mark" and self.peek.text in "+-":
            negative ^= self.take().text == "-"
        return self.term(-1.0 if negative else 1.0)

    def term(self, sign: float) -> Reward | float:
        """Numbers gather into one weight, so that 2*a*b is 2 times the product a*b."""
        weight, factors = sign, []
        while True:
            factor = self.factor()
            if isinstance(factor, float):
                weight *= factor
            else:
                factors.append(factor)
            if not self.taken("*"):
                break
        if not factors:
            return weight
        product = factors[0]
        for factor in factors[1:]:
            product = product * factor
        return weight * product

    def factor(self) -> Reward | float:
        token = self.peek
        if token.kind == "number":
            return self.finite(self.take())
        if self.taken("("):
            inner = self.expression()
            self.take(")")
            return inner
        if token.kind in ("name", "text"):
            return self.atom(self.take())
        raise self.wrong("a number, a reward or '('")

    def finite(self, token: _Token) -> float:
        value = float(token.text)
        if value in (float("inf"), float("-inf")):
            raise FormulaError(f"{token.text} at column {token.at + 1} is too large a number")
        return value

    # -- rewards

    def atom(self, token: _Token) -> Reward:
        if self.peek.text == ":":
            raise self.wrong("an operator or the end")
        called = self.taken("(")
        if token.kind == "name" and token.text in _COMBINATORS:
            if not called:
                raise FormulaError(f"{token.text} at column {token.at + 1} wants arguments: {token.text}(…)")
            return self.combinator(token)
        options = self.options() if called else {}
        name = _unquote(token.text) if token.kind == "text" else token.text
        return self.resolve(name, options)

    def options(self) -> dict[str, Any]:
        options: dict[str, Any] = {}
        while not self.taken(")"):
            if not self.names_a_value():
                raise self.wrong("an option as name=value")
            name = self.take()
            self.take("=")
            if name.text in options:
                raise FormulaError(f"option {name.text} at column {name.at + 1} is given twice")
            options[name.text] = self.literal()
            if not self.taken(","):
                self.take(")")
                break
        return options

    def names_a_value(self) -> bool:
        return self.peek.kind == "name" and self.tokens[self.place + 1].text == "="

    def literal(self) -> Any:
        self.deeper()
        value = self._literal()
        self.depth -= 1
        return value

    def _literal(self) -> Any:
        negative = self.taken("-")
        token = self.peek
        if token.kind == "number":
            self.take()
            number = int(token.text) if token.text.isdigit() and len(token.text) <= 300 else self.finite(token)
            return -number if negative else number
        if negative:
            raise self.wrong("a number")
        if token.kind == "text":
            return _unquote(self.take().text)
        if token.kind == "name" and token.text in _CONSTANTS:
            return _CONSTANTS[self.take().text]
        if self.taken("["):
            return self._items("]", self.literal)
        if self.taken("{"):
            return dict(self._items("}", lambda: self._pair(self.literal)))
        raise self.wrong("a value: a number, a quoted text, True, False, None, [ ] or { }")

    def _items(self, closing: str, item: Callable[[], Any]) -> list[Any]:
        items = []
        while not self.taken(closing):
            items.append(item())
            if not self.taken(","):
                self.take(closing)
                break
        return items

    def _pair(self, value: Callable[[], Any]) -> tuple[Any, Any]:
        key = self.literal()
        if isinstance(key, (list, dict)):
            raise self.wrong("a number or a text as key")
        self.take(":")
        return key, value()

    def combinator(self, token: _Token) -> Reward:
        name = token.text
        if name == "schedule":
            self.take("{")
            entries = self._items("}", lambda: self._pair(self.reward))
            self.take(")")
            if len(dict(entries)) != len(entries):
                raise FormulaError(f"schedule at column {token.at + 1} gives one step twice")
            return compose.schedule(dict(entries))
        given: list[Reward] = []
        named: dict[str, Any] = {}
        while not self.taken(")"):
            if self.names_a_value():
                key = self.take().text
                self.take("=")
                if key in named:
                    raise FormulaError(f"{name} at column {token.at + 1} is given {key} twice")
                named[key] = self.reward() if key in ("condition", "then", "part") else self.literal()
            else:
                given.append(self.reward())
            if not self.taken(","):
                self.take(")")
                break
        try:
            return getattr(compose, name)(*given, **named)  # type: ignore[no-any-return]
        except (TypeError, ValueError) as problem:
            text = str(problem).replace("()", "")
            raise FormulaError(f"{name} at column {token.at + 1}: {text}") from None

    def reward(self) -> Reward:
        built = self.expression()
        return compose.constant(built) if isinstance(built, float) else built


def _unquote(token: str) -> str:
    """Return the text of a quoted token; a backslash keeps the next character, and \\n is a line break."""
    return re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], token[1:-1], flags=re.DOTALL)
