"""The functions that answers may use: their names in LaTeX, calculator and Python notation."""

from __future__ import annotations

NAMES: dict[str, str] = {
    **{name: name for name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "coth", "sech", "csch")},
    **{f"arc{name}": f"a{name}" for name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh")},
    **{f"a{name}": f"a{name}" for name in ("sin", "cos", "tan", "cot", "sinh", "cosh", "tanh")},
    **{f"ar{name}": f"a{name}" for name in ("sinh", "cosh", "tanh")},
    "cosec": "csc", "tg": "tan", "ctg": "cot", "arctg": "atan", "arcctg": "acot",
    "ln": "ln", "log": "log", "lg": "lg", "exp": "exp", "sqrt": "sqrt", "cbrt": "cbrt", "abs": "abs", "Abs": "abs",
    "floor": "floor", "ceil": "ceil", "ceiling": "ceil", "gcd": "gcd", "lcm": "lcm", "max": "max", "min": "min",
    "factorial": "factorial", "binomial": "binomial", "binom": "binomial", "comb": "binomial", "nCr": "binomial",
    "det": "det", "sgn": "sign", "sign": "sign", "Re": "re", "Im": "im", "re": "re", "im": "im", "arg": "arg",
    "Arg": "arg", "conjugate": "conj", "conj": "conj", "erf": "erf", "cis": "cis",
}  # fmt: skip
INVERSE = {name: f"a{name}" for name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh")}
TAKES_BARE = frozenset(
    "sin cos tan cot sec csc sinh cosh tanh coth sech csch asin acos atan acot asec acsc asinh acosh atanh ln log lg exp"
    " sqrt cbrt arg re im cis det sign".split()
)
UNKNOWN = frozenset("fghFGH")
GREEK = frozenset(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi omicron rho varrho"
    " sigma varsigma tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Sigma Upsilon Phi Psi Omega ell"
    " hbar partial nabla aleph Pi".split()
)
SAME_LETTER = {"varepsilon": "epsilon", "vartheta": "theta", "varphi": "phi", "varrho": "rho", "varsigma": "sigma"}
# Words that may stand bare for a Greek letter, in calculator notation.
BARE_GREEK = frozenset("alpha beta gamma delta theta lambda mu sigma omega phi psi rho tau epsilon".split())
