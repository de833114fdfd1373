r"""Normalised text -> tokens: numbers, letters, words, commands, operators, brackets."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

from rewardkit.verifiers.math.functions import GREEK, NAMES, SAME_LETTER
from rewardkit.verifiers.math.gate import MAX_TOKENS, Refused, TooLarge
from rewardkit.verifiers.math.normalise import closing
from rewardkit.verifiers.math.patterns import lazily


class Token(NamedTuple):
    """One token.

    Attributes:
        kind: "num", "run" (letters side by side), "sym", "fn", "op", "rel", "open", "close", "cmd",
            "text", "join", "sep", "end".
        text: Its normal form.
        start: Where it starts in the text.
        end: Where it ends.
        spaced: White space stands before it.
        value: The value of a number.
        digits: Significant digits of a decimal number.
    """

    kind: str
    text: str
    start: int
    end: int
    spaced: bool = False
    value: Fraction | None = None
    digits: int = 0


_SCAN = lazily(
    r"""
      (?P<space>\s+)
    | (?P<num>\d+\.(?=\\(?:overline|bar|dot)(?![A-Za-z]))|(?:[1-9]\d{0,2}(?:_\d{3})+(?!\d)|\d+)(?:\.\d+)?
        (?:[eE](?:[-]?\d{1,6}|\+\d{2,6})(?![A-Za-z\d.]))?
        |\.\d+(?:[eE][-+]?\d{1,6}(?![A-Za-z\d.]))?)
    | (?P<cmd>\\[A-Za-z]+|\\.)
    | (?P<run>[A-Za-z]+)
    | (?P<rel><=>|<=|>=|==|!=|=<|=>|:=|=|<|>)
    | (?P<op>\*\*|->|[-+*/^_!'%°:~&])
    | (?P<open>[({\[])
    | (?P<close>[)}\]])
    | (?P<bar>\|\||\|)
    | (?P<sep>[,;])
    | (?P<word>(?:(?![A-Za-z])[^\W\d_])+)
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_THOUSANDS = lazily(r"[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?(?![\d]|,\d)|[1-9]\d?(?:,\d{2})+,\d{3}(?:\.\d+)?(?![\d]|,\d)")

_RELATIONS = {
    "le": "<=", "leq": "<=", "leqslant": "<=", "leqq": "<=", "ge": ">=", "geq": ">=", "geqslant": ">=", "geqq": ">=",
    "ne": "!=", "neq": "!=", "in": "in", "notin": "notin", "approx": "~", "equiv": "==", "sim": "sim", "cong": "cong",
    "propto": "propto", "subset": "subset", "subseteq": "subseteq", "parallel": "parallel", "perp": "perp",
    "simeq": "~",
    "ll": "ll", "gg": "gg", "doteq": "=",
}  # fmt: skip
_REL_SIGNS = {"==": "=", "=<": "<=", ":=": "=", "=>": "=>", "<=>": "<=>"}
_OPERATORS = {
    "cdot": "*", "times": "*", "ast": "*", "cdotp": "*", "bullet": "*", "div": "/", "pm": "pm", "mp": "mp",
    "cup": "cup",
    "cap": "cap", "bigcup": "cup", "setminus": "setminus", "backslash": "setminus", "over": "over", "choose": "choose",
    "mid": "|", "vert": "|", "lvert": "|", "rvert": "|", "Vert": "||", "lVert": "||", "rVert": "||", "to": "to",
    "rightarrow": "to", "colon": ":", "circ": "circ", "bmod": "mod", "mod": "mod", "pmod": "pmod", "pod": "pmod",
    "%": "%", "degree": "°", "union": "cup", "smallsetminus": "setminus",
}  # fmt: skip
_BRACKETS = {
    "{": ("open", "\\{"), "}": ("close", "\\}"), "lbrace": ("open", "\\{"), "rbrace": ("close", "\\}"),
    "langle": ("open", "<"), "rangle": ("close", ">"), "lfloor": ("open", "floor"), "rfloor": ("close", "floor"),
    "lceil": ("open", "ceil"), "rceil": ("close", "ceil"), "lbrack": ("open", "["), "rbrack": ("close", "]"),
    "lparen": ("open", "("), "rparen": ("close", ")"),
}  # fmt: skip
_GLUE = frozenset((*_RELATIONS, *_OPERATORS, "pi", "infty", "alpha", "beta", "theta", "sqrt")) - {
    "in",
    "to",
    "mp",
    "mid",
}
_KNOWN_COMMANDS = frozenset(
    [
        "frac",
        "dfrac",
        "tfrac",
        "cfrac",
        "sqrt",
        "binom",
        "dbinom",
        "tbinom",
        "pi",
        "infty",
        "emptyset",
        "varnothing",
        "mathbb",
        "begin",
        "end",
        "sum",
        "prod",
        "int",
        "lim",
        "iint",
        "oint",
        "ldots",
        "cdots",
        "dots",
        "dotsc",
        "dotsb",
        "imath",
        "cbrt",
        "infin",
        "hline",
        "top",
        "vec",
        "hat",
        "bar",
        "overline",
        "tilde",
        "dot",
        "ddot",
        "overrightarrow",
        "angle",
    ]
)
_JOINS = {"land": "and", "wedge": "and", "lor": "or", "vee": "or", "text{and}": "and"}
_TEXTS = frozenset(
    [
        "text",
        "mathrm",
        "textrm",
        "mbox",
        "textbf",
        "mathbf",
        "textit",
        "mathit",
        "mathsf",
        "operatorname",
        "textsf",
        "texttt",
        "bm",
        "boldsymbol",
        "rm",
        "hbox",
        "mathcal",
        "mathscr",
        "mathfrak",
        "mathtt",
        "textup",
        "textnormal",
        "emph",
        "underline",
        "boxed",
        "fbox",
    ]
)
_LETTERS_ONLY = frozenset(
    [
        "mathbf",
        "mathit",
        "mathsf",
        "bm",
        "boldsymbol",
        "mathcal",
        "mathscr",
        "mathfrak",
        "mathtt",
        "underline",
        "boxed",
        "fbox",
    ]
)
_WORD_JOINS = {
    "and": "and", "or": "or", "或": "or", "和": "and", "且": "and",
    "及": "and", "与": "and", "或者": "or", "oder": "or",
    "ou": "or", "o": "or", "y": "and", "et": "and",
    "und": "and", "&": "and", ", and": "and", ", or": "or", ",or": "or",
    ",and": "and", "and/or": "or", "或是": "or", "以及": "and",
}  # fmt: skip
_PLAIN_JOINS = frozenset(("and", "or"))


def tokenize(text: str) -> list[Token]:
    """Return the tokens of a normalised text, with an "end" token.

    Raises:
        Refused: It holds something that no answer is made of, or too much.
    """
    tokens: list[Token] = []
    _scan(text, 0, len(text), tokens, False)
    tokens.append(Token("end", "", len(text), len(text)))
    return tokens


def _scan(text: str, at: int, stop: int, tokens: list[Token], spaced: bool) -> None:
    depth = 0
    while at < stop:
        if len(tokens) > MAX_TOKENS:
            raise TooLarge(f"more than {MAX_TOKENS} tokens")
        match = _SCAN.match(text, at, stop)
        if match is None:  # never: the last alternative takes any character
            raise Refused(f"{text[at]!r} has no meaning here")
        kind, found = str(match.lastgroup), match[0]
        end = match.end()
        if kind == "space":
            at, spaced = end, True
            continue
        if kind == "num":
            if not depth and (grouped := _THOUSANDS.match(text, at, stop)) is not None and grouped.end() >= end:
                found, end = grouped[0], grouped.end()
            tokens.append(_number(found, at, end, spaced))
        elif kind == "cmd":
            end = _command(text, at, end, stop, found[1:], tokens, spaced)
            step = _BRACKETS.get(found[1:])
            if step is not None:
                depth += 1 if step[0] == "open" else -1
        elif kind == "run":
            tokens.append(_run(found, at, end, spaced))
        elif kind == "rel":
            tokens.append(Token("rel", _REL_SIGNS.get(found, found), at, end, spaced))
        elif kind in ("open", "close"):
            depth += 1 if kind == "open" else -1
            tokens.append(Token(kind, found, at, end, spaced))
        elif kind == "bar":
            tokens.append(Token("op", found, at, end, spaced))
        elif kind == "word":
            join = _WORD_JOINS.get(found)
            tokens.append(Token("join", join, at, end, spaced) if join else Token("text", found, at, end, spaced))
        elif kind == "other":
            tokens.append(Token("text", found, at, end, spaced))
        else:
            tokens.append(Token("op" if kind == "op" else "sep", "^" if found == "**" else found, at, end, spaced))
        at, spaced = end, False


def _number(found: str, start: int, end: int, spaced: bool) -> Token:
    plain = found.replace(",", "").replace("_", "")
    mantissa, _, power = plain.replace("E", "e").partition("e")
    whole, point, part = mantissa.partition(".")
    value = Fraction(int((whole or "0") + part), 10 ** len(part))
    digits = (len((whole + part).lstrip("0")) or 1) if point else 0
    if power:
        size = int(power)
        if abs(size) > 6000:
            raise TooLarge(f"a power of ten of {size}")
        value *= Fraction(10) ** size
        digits = digits or len(whole.strip("0")) or 1
    return Token("num", found, start, end, spaced, value, digits)


def _run(found: str, start: int, end: int, spaced: bool) -> Token:
    if found in _PLAIN_JOINS:
        return Token("join", found, start, end, spaced)
    if found in ("union", "U") and spaced:
        return Token("op", "cup", start, end, spaced)
    if found in NAMES:
        return Token("fn", found, start, end, spaced)
    if found in ("infinity", "inf", "oo", "Infinity", "infty"):
        return Token("cmd", "infty", start, end, spaced)
    if found == "mod":
        return Token("op", "mod", start, end, spaced)
    return Token("run", found, start, end, spaced)


def _command(text: str, start: int, end: int, stop: int, name: str, tokens: list[Token], spaced: bool) -> int:
    """Add the token of a LaTeX command and return where it ends."""
    if name in _TEXTS:
        return _text_command(text, start, end, stop, name, tokens, spaced)
    if name in _RELATIONS:
        token = Token("rel", _RELATIONS[name], start, end, spaced)
    elif name in _OPERATORS:
        token = Token("op", _OPERATORS[name], start, end, spaced)
    elif name in _BRACKETS:
        token = Token(*_BRACKETS[name], start, end, spaced)
    elif name in _JOINS:
        token = Token("join", _JOINS[name], start, end, spaced)
    elif name in NAMES and name not in ("sqrt", "binom", "binomial"):
        token = Token("fn", name, start, end, spaced)
    elif name in GREEK:
        token = Token("sym", SAME_LETTER.get(name, name), start, end, spaced)
    elif name == "not":
        return _negated(text, start, end, stop, tokens, spaced)
    else:
        glued = _glued(name)
        if glued:  # \\lex: a command and a letter that lost their space
            return _command(text, start, start + 1 + len(glued), stop, glued, tokens, spaced)
        token = Token("cmd", name, start, end, spaced)
    tokens.append(token)
    return end


def _glued(name: str) -> str:
    """Return the command that an unknown one begins with, where one or two letters are stuck to it."""
    if name in _KNOWN_COMMANDS:
        return ""
    for length in (len(name) - 1, len(name) - 2):
        if length >= 2 and name[:length] in _GLUE:
            return name[:length]
    return ""


_AFTER_NOT = lazily(r"\s*(?:(=)|\\(in)(?![A-Za-z]))")


def _negated(text: str, start: int, end: int, stop: int, tokens: list[Token], spaced: bool) -> int:
    match = _AFTER_NOT.match(text, end, stop)
    if match is None:
        raise Refused("\\not stands before no relation")
    tokens.append(Token("rel", "!=" if match[1] else "notin", start, match.end(), spaced))
    return match.end()


def _text_command(text: str, start: int, end: int, stop: int, name: str, tokens: list[Token], spaced: bool) -> int:
    opening = end
    while opening < stop and text[opening] == " ":
        opening += 1
    if opening >= stop or text[opening] != "{":
        if name in _LETTERS_ONLY or name in ("mathrm", "text"):
            return end  # \mathbf x: only a font
        raise Refused(f"\\{name} has no argument")
    close = closing(text, opening)
    if close < 0 or close >= stop:
        raise Refused(f"\\{name} is not closed")
    raw = text[opening + 1 : close]
    inner = raw.strip(" ~")
    if not inner:
        return close + 1
    lower = inner.lower()
    if lower in _WORD_JOINS and (len(lower) > 1 or raw != inner):
        tokens.append(Token("join", _WORD_JOINS[lower], start, close + 1, spaced))
    elif inner in NAMES and name not in _LETTERS_ONLY:
        tokens.append(Token("fn", inner, start, close + 1, spaced))
    elif len(inner) == 1 and inner in _UNIT_LETTERS and name not in _LETTERS_ONLY and _ends_value(tokens):
        tokens.append(Token("text", inner, start, close + 1, True))
    elif name in _LETTERS_ONLY or _PLAIN.fullmatch(inner) is not None or "\\" in inner:
        _scan(text, opening + 1, close, tokens, True)
    else:
        tokens.append(Token("text", inner, start, close + 1, True))
    return close + 1


_UNIT_LETTERS = frozenset("mgshlLNJWV")


def _ends_value(tokens: list[Token]) -> bool:
    return bool(tokens) and (tokens[-1].kind in ("num", "close") or tokens[-1].text == "pi")


# What is mathematics although it stands in \text: one letter, or no letters at all.
_PLAIN = lazily(r"[^A-Za-z\u0080-\uffff]+|[A-Za-z]'?|\([A-Za-z]\)")
