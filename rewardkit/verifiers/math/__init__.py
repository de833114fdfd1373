"""`math`: answers in mathematics.

From a completion to a verdict, one room after the other: extraction (where the answer stands), gate (size limits),
normalise (one way of writing), reading (typed.py and words.py without a grammar, tokens.py and grammar.py with one),
compare (by form: lists, intervals, equations), leaves (values: rational.py exactly, points.py at points), symbolic
(sympy, in a worker). verifier.py is what is registered.
"""
