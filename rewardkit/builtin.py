"""What rewardkit itself registers, through the same hooks as every plugin."""

from __future__ import annotations

from rewardkit.hookspecs import Register, hookimpl


@hookimpl
def rewardkit_verifiers(register: Register) -> None:
    register("exact", "rewardkit.verifiers.exact:Exact", "The text equals the reference")
    register(
        "numeric",
        "rewardkit.verifiers.numeric:Numeric",
        "The answer is the reference number, exactly or within a tolerance",
    )
    register(
        "gsm8k", "rewardkit.verifiers.gsm8k:Gsm8k", "The final number equals that of a GSM8K-style worked solution"
    )


@hookimpl
def rewardkit_rewards(register: Register) -> None:
    register("label", "rewardkit.rewards.label:label", "A label that the file already has")
    register(
        "think_format", "rewardkit.rewards.think_format:think_format", "One well-formed <think> block, then the answer"
    )
    register("length", "rewardkit.rewards.length:length", "1 inside length bounds, falling linearly outside")


@hookimpl
def rewardkit_readers(register: Register) -> None:
    register("generations", "rewardkit.records.generations:READER", "rewardkit's own generations.jsonl")
    register("jsonl", "rewardkit.records.jsonl:READER", "One JSON object a line")
    register("json", "rewardkit.records.json_document:READER", "One JSON document")
    register("csv", "rewardkit.records.csv_table:READER", "A table with a header row: comma, semicolon, tab or bar")


@hookimpl
def rewardkit_commands(register: Register) -> None:
    register("eval", "rewardkit.cli.eval:command", "Score saved generations with one or more rewards.")
    register("list", "rewardkit.cli.list:command", "List rewards, verifiers, readers and backends.")
    register(
        "show", "rewardkit.cli.show:command", "Show one reward: what it does, its options, its reference, an example."
    )
    register("try", "rewardkit.cli.try_:command", "Score one text and explain the result.")
    register("plugins", "rewardkit.cli.plugins:command", "List installed plugins, and what is wrong with broken ones.")
