"""`code`: is a program right, by running it against tests whose verdict it cannot reach.

`verifier.py` is the verifier; the rest are its steps, each usable by itself: `extraction.py` (text -> program),
`forms.py` (reference -> tests), `reduction.py` (test code -> calls with expected values), `judging.py` (program + tests
-> what happened, in a sandbox) and `comparison.py` (what came back against what was expected).
"""
