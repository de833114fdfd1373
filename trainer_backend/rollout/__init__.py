"""Sampling: prompts in, groups of completions out, behind one protocol (`types.Sampler`).

`types` and `options` import neither torch nor vLLM; each sampler's own stack is imported by its own file only.
"""
