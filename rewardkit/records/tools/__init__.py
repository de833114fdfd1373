"""Readers of what other tools write, one tool a file; `records/rows.py` lists them."""
