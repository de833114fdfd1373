r"""One way of writing: other scripts and look-alikes become ASCII and LaTeX, wrappers and layout go.

Nothing here changes what an answer means, and everything is linear in its length.
"""

from __future__ import annotations

import re
import unicodedata

from rewardkit.verifiers.math.patterns import lazily

_COMMANDS = {
    "∞": "infty", "π": "pi", "θ": "theta", "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "epsilon",
    "ϵ": "epsilon", "λ": "lambda", "μ": "mu", "ν": "nu", "ξ": "xi", "ρ": "rho", "σ": "sigma", "τ": "tau", "φ": "phi",
    "ϕ": "phi", "χ": "chi", "ψ": "psi", "ω": "omega", "η": "eta", "ζ": "zeta", "κ": "kappa", "Γ": "Gamma",
    "Δ": "Delta", "Θ": "Theta", "Λ": "Lambda", "Π": "prod", "Σ": "Sigma", "Φ": "Phi", "Ψ": "Psi", "Ω": "Omega",
    "∆": "Delta", "𝜋": "pi", "≤": "le", "⩽": "le", "≦": "le", "≥": "ge", "⩾": "ge", "≧": "ge", "≠": "ne", "±": "pm",
    "∓": "mp", "×": "times", "✕": "times", "✖": "times", "⋅": "cdot", "·": "cdot", "∙": "cdot", "•": "cdot",
    "∗": "cdot", "÷": "div", "∪": "cup", "∩": "cap", "∈": "in", "∉": "notin", "∅": "emptyset", "∖": "setminus",
    "ℝ": "mathbb{R}", "ℤ": "mathbb{Z}", "ℕ": "mathbb{N}", "ℚ": "mathbb{Q}", "ℂ": "mathbb{C}", "√": "sqrt",
    "∛": "cbrt", "∑": "sum", "∏": "prod", "∫": "int", "≈": "approx", "≡": "equiv", "→": "to", "⟶": "to",
    "⌊": "lfloor", "⌋": "rfloor", "⌈": "lceil", "⌉": "rceil", "⟨": "langle", "⟩": "rangle", "〈": "langle",
    "〉": "rangle", "∧": "land", "∨": "lor", "∣": "mid", "…": "ldots", "⋯": "ldots", "∘": "circ", "∂": "partial",
    "∥": "parallel", "⊥": "perp", "∠": "angle", "△": "triangle", "⇒": "Rightarrow", "⇔": "Leftrightarrow",
    "⊂": "subset", "⊆": "subseteq", "∴": "therefore", "ⅈ": "i", "ⅉ": "i", "¬": "neg", "∝": "propto",
}  # fmt: skip
_PLAIN = {
    **dict.fromkeys("−‐‑‒–—﹣－➖", "-"),
    **dict.fromkeys("＋➕﹢", "+"),
    **dict.fromkeys("⁄∕", "/"),
    **dict.fromkeys("∶：", ":"),
    **dict.fromkeys("，、،﹐", ","),
    **dict.fromkeys("；﹔", ";"),
    **dict.fromkeys("。｡", "."),
    **dict.fromkeys("（﹙⦅", "("),
    **dict.fromkeys("）﹚⦆", ")"),
    **dict.fromkeys("［【〔", "["),
    **dict.fromkeys("］】〕", "]"),
    **dict.fromkeys("｛", "{"),
    **dict.fromkeys("｝", "}"),
    **dict.fromkeys("《", "<"),
    **dict.fromkeys("》", ">"),
    **dict.fromkeys("’‘ʼ′＇", "'"),
    **dict.fromkeys("“”″＂", '"'),
    **dict.fromkeys("\u00a0\u202f\u2009\u2007\u2008\u2005\u2006\u2002\u2003\u2004\u200a\u205f\u3000\t\r\n", " "),
    **dict.fromkeys("\u200b\u200c\u200d\u200e\u200f\u2060\ufeff\u2061\u2062\u2063\u2064\ufe0f\u00ad", ""),
    "٫": ".", "٬": ",", "％": "%", "٪": "%", "﹪": "%", "º": "°", "˚": "°", "￥": "¥", "￡": "£", "＝": "=", "﹦": "=",
    "＜": "<", "＞": ">", "｜": "|", "！": "!", "？": "?", "∼": "~", "〜": "~", "～": "~", "℃": "°C", "℉": "°F",
}  # fmt: skip
_RAISED = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱˣʸᵃᵇᵏᵐᵗᵀ", "0123456789+-()nixyabkmtT", strict=True))
_LOWERED = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋₍₎ₙₖᵢⱼₓₐₘ", "0123456789+-()nkijxam", strict=True))
_RAISED_RUN = lazily(f"[{''.join(map(re.escape, _RAISED))}]+")
_LOWERED_RUN = lazily(f"[{''.join(map(re.escape, _LOWERED))}]+")
_RAISED_TABLE, _LOWERED_TABLE = str.maketrans(_RAISED), str.maketrans(_LOWERED)
_KEPT = frozenset("°€£¥₹₩₽₱₫฿₦¢")


def fold(text: str) -> str:
    """Write a text of any script in ASCII and LaTeX as far as it is mathematics; other letters stay."""
    if text.isascii():
        return text.translate(_BLANKS)
    text = _RAISED_RUN.sub(lambda run: "^{" + run[0].translate(_RAISED_TABLE) + "}", text)
    text = _LOWERED_RUN.sub(lambda run: "_{" + run[0].translate(_LOWERED_TABLE) + "}", text)
    return "".join([char if char < "\x80" else _folded(char) for char in text]).translate(_BLANKS)


_BLANKS = str.maketrans("\t\r\n\x0b\x0c", "     ")


def _folded(char: str) -> str:
    if char in _PLAIN:
        return _PLAIN[char]
    if char in _COMMANDS:
        return f"\\{_COMMANDS[char]} "
    if char in _KEPT:
        return char
    digit = unicodedata.decimal(char, None)
    if digit is not None:
        return str(digit)
    plain = unicodedata.normalize("NFKC", char)
    if "\u2044" in plain:
        upper, _, lower = plain.partition("\u2044")
        return f"\\frac{{{upper}}}{{{lower}}}"
    if plain in _COMMANDS:
        return f"\\{_COMMANDS[plain]} "
    return plain if len(plain) <= 4 else char


_LAYOUT = lazily(
    r"\\(?:left|right|middle|bigl?|Bigl?|biggl?|Biggl?|[bB]igg?[rm]|displaystyle|textstyle|scriptstyle|limits|nolimits"
    r"|tiny|small|normalsize|large|Large|rm|bf|it|sf|mathstrut|strut|nonumber|hfill|centering|boldmath)(?![A-Za-z])\s?"
)
_LEFT_DOT = lazily(r"\\(?:left|right)\s*\.")
_SPACES = lazily(
    r"\\(?:[,;:> ]|(?:q?quad|thinspace|medspace|thickspace|enspace|hspace\*?\s*\{[^{}]{0,16}\}|nobreakspace|null)"
    r"(?![A-Za-z]))|~"
)
_NOTHING = lazily(r"\\!|\\(?:tag|label)\s*\{[^{}]{0,40}\}|\\phantom\s*\{[^{}]{0,40}\}")
_COLOUR = lazily(r"\\(?:text)?color\s*\{[^{}]{0,40}\}|\\(?:color)\s*(?:red|blue|green|black)(?![A-Za-z])")
_KERN = lazily(r"\\(?:kern|mkern|hskip)\s*-?\d{0,4}\.?\d{0,4}\s*(?:pt|em|mu|ex)")
_GROUPED = lazily(r"(?<=\d)(?:\{,\}|\\,|,\\!\s?|,\{\}|\{ \}|\\ |~)(?=\d{3}(?!\d))")
_ESCAPES = [
    (lazily(r"\\(?:\$|textdollar(?![A-Za-z]))"), "US$"),
    (lazily(r"\\([#&])"), r"\1"),
    (lazily(r"\\pounds(?![A-Za-z])"), "£"),
    (lazily(r"\\(?:text)?euro(?![A-Za-z])"), "€"),
    (lazily(r"\^\s*\{?\s*\\(?:circ|degree)(?![A-Za-z])\s*\}?|\\(?:text)?degree(?![A-Za-z])"), "°"),
    (lazily(r"\\(?:lt)(?![A-Za-z])"), "<"),
    (lazily(r"\\(?:gt)(?![A-Za-z])"), ">"),
    (lazily(r"\\prime(?![A-Za-z])"), "'"),
    (lazily(r"\^\s*(?:\{\s*('+)\s*\}|('))"), r"\1\2"),
]
_WRAPPER = lazily(
    r"\\(?:boxed|fbox|underline|mathbf|mathsf|bm|boldsymbol|emph|textbf|textit|mathit|ensuremath|displaylines|pmb"
    r"|colorbox\{[a-z]{0,12}\}|framebox|mathbin|mathrel|mathord|mathstrut|hbox|enclose\{[a-z]{0,12}\})\s*\{"
)
_PAIRS = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("`", "`"), ('"', '"'), ("**", "**"), ("__", "__"))
_END = lazily(r"(?:[.,;:]|\\\\)+\s*$|(?<=[^\d!)}\]\sA-Za-z|])!+$")


def strip_layout(text: str) -> str:
    """Take away LaTeX layout, spacing, colour and fonts, and write escapes plainly."""
    if "\\" in text or "~" in text or "{,}" in text:
        if "\\left" in text or "\\right" in text:
            text = _LEFT_DOT.sub(" ", text)
        text = _GROUPED.sub(",", text)
        text = _NOTHING.sub("", text)
        text = _COLOUR.sub("", text)
        text = _LAYOUT.sub("", text)
        text = _KERN.sub(" ", text)
        text = _spaced(text)
        for pattern, by in _ESCAPES:
            text = pattern.sub(by, text)
    if "{,}" in text:
        text = text.replace("{,}", ",")
    return text.strip()


def _spaced(text: str) -> str:
    # "\\\\ " at the end of a matrix row is no space.
    return _SPACES.sub(" ", text.replace("\\\\", "\x00")).replace("\x00", "\\\\")


def unwrap(text: str) -> str:
    """Take off what only surrounds an answer: maths and Markdown delimiters, boxes, final punctuation."""
    for _ in range(12):
        before = text
        text = text.strip()
        text = _END.sub("", text).rstrip()
        if text.startswith("***") or text.endswith("***"):
            text = text.strip("*").strip()
        for left, right in _PAIRS:
            if len(text) >= len(left + right) and text.startswith(left) and text.endswith(right):
                inner = text[len(left) : len(text) - len(right)]
                if left not in inner and right not in inner and (left != "$" or text[-3:-1] != "US"):
                    text = inner
                    break
        if text.endswith(("**", "`")) and text.count("**") == 1:
            text = text[:-2]
        if text.startswith("**") and text.count("**") == 1:
            text = text[2:]
        match = _WRAPPER.match(text)
        if match is not None and closing(text, match.end() - 1) == len(text) - 1:
            text = text[match.end() : -1]
        if text == before:
            break
    return text


def closing(text: str, opening: int) -> int:
    """Return where the brace closes that opens at a place; -1 where it does not."""
    depth = 0
    escaped = False
    for at in range(opening, len(text)):
        char = text[at]
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = True
        elif char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
            if not depth:
                return at
    return -1


_HAN_LEAD = lazily(r"^\s*(?:答案|结果)\s*(?:是|为|:)+\s*(?=[-+\d\\$(\[])")
_HAN_SIGN = lazily(r"^\s*负(?=\d)")
_LEAD = lazily(r"^\s*(?:(?:the\s+)?(?:final\s+)?answer\s*(?:is|:|=)\s*)(?=[-+\d\\$(\[])", re.IGNORECASE)
_SIGNED = lazily(r"^\s*(negative|minus|positive|plus or minus)\s+(?=(?:infinity|\d+(?:\.\d+)?)\.?\s*$)", re.IGNORECASE)
_SIGNS = {"negative": "-", "minus": "-", "positive": "", "plus or minus": "\\pm "}
_TAGGED = lazily(r"^\s*(?:<answer>([^<>]*)</answer>|\\begin\{equation\*?\}(.*)\\end\{equation\*?\})\s*$", re.DOTALL)


def _led(text: str) -> str:
    """Drop what only announces an answer, and write signs in words as signs."""
    text = _TAGGED.sub(lambda match: match[1] or match[2] or "", text)
    text = _SIGNED.sub(lambda match: _SIGNS[match[1].lower()], _LEAD.sub("", text))
    return text.replace("+/-", "\\pm ") if "+/-" in text else text


_HAN_SCALED = lazily(r"^\s*(-?\d{1,9}(?:\.\d{1,8})?)\s*([万亿])\s*\.?$")


def _han(text: str) -> str:
    """Drop "the answer is" in Chinese, and write 1.5万 as 15000."""
    text = _HAN_SIGN.sub("-", _HAN_LEAD.sub("", text))
    scaled = _HAN_SCALED.match(text)
    if scaled is not None:
        whole, _, part = scaled[1].partition(".")
        places = 4 if scaled[2] == "万" else 8
        if len(part) <= places:
            return str(int(whole + part.ljust(places, "0")))
    return text


_GOES_ON = lazily(r"^([^A-Za-z]*,[^A-Za-z]*\d)\s*,?\s*\.{2,}(?=[\s$]*$)")


def normalise(text: str) -> str:
    """Return the one form in which an answer is read."""
    text = fold(text)
    if text.rstrip("$ ").endswith("..") and "," in text:
        text = _GOES_ON.sub(r"\1,\\ldots", text)
    if not text.isascii():
        text = _han(text)
    text = _led(text)
    text = unwrap(text)
    plain = strip_layout(text)
    return unwrap(plain) if plain != text else plain
