"""Writes the parquet files beside this file with TRL itself: GRPOTrainer with `log_completions`, two steps on a CPU.

    pip install torch trl==1.16.0 datasets pandas pyarrow && python tests/samples/trl/make.py

The model is a random Qwen2 of two layers over bytes, so its completions are noise; to have answers that are right or
wrong, the text that a completion decodes to is replaced by one from a table. `text` holds plain prompts, `chat` message
lists. `gold` is written by `log_extra`. The second reward gives None for some, which TRL logs as NaN.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

HERE = Path(__file__).parent
GOLD = {"2 + 2?": "4", "3 + 3?": "6"}
ANSWERS = ["It is #### 4", "#### 6", "five", "#### 4"]
CHAT = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


class Answers(PreTrainedTokenizerFast):
    """Decodes whole completions to the texts above, in turn."""

    turn = 0

    def batch_decode(self, sequences, **options):
        if not options.get("skip_special_tokens"):
            return super().batch_decode(sequences, **options)
        texts = [ANSWERS[(Answers.turn + at) % len(ANSWERS)] for at in range(len(sequences))]
        Answers.turn += 1
        return texts


def tokenizer() -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: at for at, token in enumerate(["<pad>", "<eos>", *alphabet])}
    made = Tokenizer(models.BPE(vocabulary, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return Answers(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", chat_template=CHAT)


def text_of(completion):
    return completion if isinstance(completion, str) else completion[-1]["content"]


def right(completions, prompts, gold, log_extra=None, **_):
    if log_extra:
        log_extra("gold", list(gold))
    return [float(answer in text_of(text)) for text, answer in zip(completions, gold, strict=True)]


def short(completions, **_):
    return [None if "is" in text_of(text) else 1 / len(text_of(text)) for text in completions]


def run(kind: str) -> None:
    prompts = list(GOLD)
    shown = prompts if kind == "text" else [[{"role": "user", "content": text}] for text in prompts]
    config = Qwen2Config(
        vocab_size=300, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=128,
    )  # fmt: skip
    torch.manual_seed(0)
    Answers.turn = 0
    with tempfile.TemporaryDirectory() as folder:
        options = GRPOConfig(
            output_dir=folder, log_completions=True, max_steps=2, logging_steps=1, per_device_train_batch_size=8,
            num_generations=4, max_completion_length=4, report_to=[], use_cpu=True, bf16=False, save_strategy="no",
            seed=0, gradient_checkpointing=False,
        )  # fmt: skip
        trainer = GRPOTrainer(
            model=Qwen2ForCausalLM(config),
            reward_funcs=[right, short],
            args=options,
            train_dataset=Dataset.from_dict({"prompt": shown, "gold": list(GOLD.values())}),
            processing_class=tokenizer(),
        )
        trainer.train()
        (HERE / kind).mkdir(exist_ok=True)
        for path in sorted(Path(folder, "completions").glob("*.parquet")):
            shutil.copy(path, HERE / kind / path.name)


if __name__ == "__main__":
    run("text")
    run("chat")
