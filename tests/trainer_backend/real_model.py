"""SmolLM2 for the tests that need real weights; without the package that carries them they are skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer_backend.model import smollm2


def real_model() -> Path:
    """The folder of SmolLM2, converted on first use and kept in the cache; skips the test where it is not installed."""
    if not smollm2.converted(smollm2.default_folder()) and not smollm2.installed():
        pytest.skip(f"needs SmolLM2: {smollm2.INSTALL}")
    return smollm2.find_or_convert()
