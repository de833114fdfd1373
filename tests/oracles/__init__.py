"""Slow and obvious second versions, which tests compare the real ones with."""
