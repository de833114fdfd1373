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
    register(
        "contains", "rewardkit.verifiers.contains:Contains", "The reference, or all or any of a list, is in the text"
    )
    register("regex", "rewardkit.verifiers.regex:Regex", "A pattern matches, or one of its groups is the reference")
    register("choice", "rewardkit.verifiers.choice:Choice", "The right option of a multiple choice, by label or text")
    register(
        "json_schema", "rewardkit.verifiers.json_schema:JsonSchema", "The answer is JSON that a JSON Schema allows"
    )
    register("math", "rewardkit.verifiers.math.verifier:Math", "The stated answer equals the reference mathematically")
    register(
        "math_verify",
        "rewardkit.verifiers.math_verify:MathVerify",
        "What the math-verify package says, where installed",
    )
    register(
        "code",
        "rewardkit.verifiers.code.verifier:Code",
        "The program passes its tests, in a sandbox and with a verdict that it cannot reach",
    )
    register("number_close", "rewardkit.verifiers.number_close:NumberClose", "The answer is near the reference number")


@hookimpl
def rewardkit_rewards(register: Register) -> None:
    register("label", "rewardkit.rewards.label:label", "A label that the file already has")
    register(
        "think_format", "rewardkit.rewards.think_format:think_format", "One well-formed <think> block, then the answer"
    )
    register("length", "rewardkit.rewards.length:length", "1 inside length bounds, falling linearly outside")
    register("arithmetic", "rewardkit.rewards.arithmetic:arithmetic", "1 for a number, 3 more when right, -3 for none")
    register(
        "answer_correct",
        "rewardkit.rewards.answer_correct:answer_correct",
        "GSM8K set: 2 when the number in the answer tags is right",
    )
    register(
        "answer_integer",
        "rewardkit.rewards.answer_integer:answer_integer",
        "GSM8K set: 0.5 for an integer in the answer tags",
    )
    register(
        "format_strict",
        "rewardkit.rewards.format_strict:format_strict",
        "GSM8K set: 0.5 for a reasoning and an answer block, and nothing else",
    )
    register(
        "format_soft",
        "rewardkit.rewards.format_soft:format_soft",
        "GSM8K set: 0.5 for a reasoning and then an answer block, anywhere",
    )
    register(
        "tag_count",
        "rewardkit.rewards.tag_count:tag_count",
        "GSM8K set: 4 tags, 0.125 each, less 0.001 a character behind the last",
    )
    register("gsm8k_set", "rewardkit.rewards.gsm8k_set:gsm8k_set", "Preset: the five of the GSM8K set; at most 4")
    register(
        "gsm8k_think_set",
        "rewardkit.rewards.gsm8k_set:gsm8k_think_set",
        "Preset: gsm8k_set with <think> in place of <reasoning>",
    )
    register("distance", "rewardkit.rewards.distance:distance", "The nearer the number, the more: linear, ratio or log")
    register("overlong", "rewardkit.rewards.overlong:overlong", "Soft overlong penalty as in DAPO: 0 falling to -1")
    register(
        "cosine_length",
        "rewardkit.rewards.cosine_length:cosine_length",
        "A factor that falls with the length, along half a cosine",
    )
    register(
        "cosine_set",
        "rewardkit.rewards.cosine_length:cosine_set",
        "Preset: right answers 1 to 0.5, wrong ones -1 to -0.5, by length",
    )
    register("repetition", "rewardkit.rewards.repetition:repetition", "A penalty for repeated n-grams")
    register("script_share", "rewardkit.rewards.script_share:script_share", "Share of letters of a Unicode script")
    register("stop_reason", "rewardkit.rewards.stop_reason:stop_reason", "A penalty for completions that were cut off")
    register(
        "email_keywords",
        "rewardkit.rewards.email.rewards:email_keywords",
        "The e-mail's own text holds the required keywords",
    )
    register("email_match", "rewardkit.rewards.email.rewards:email_match", "The e-mail is the ideal reply")
    register("email_too_long", "rewardkit.rewards.email.rewards:email_too_long", "-1 for an e-mail with too many words")
    register(
        "email_recipient",
        "rewardkit.rewards.email.rewards:email_recipient",
        "The e-mail addresses the right person by name",
    )
    register(
        "email_signature", "rewardkit.rewards.email.rewards:email_signature", "The e-mail ends with a signature block"
    )
    register("email_set", "rewardkit.rewards.email.rewards:email_set", "Preset: the e-mail rubric, from -1 to 4")


@hookimpl
def rewardkit_readers(register: Register) -> None:
    register("generations", "rewardkit.records.generations:READER", "rewardkit's own generations.jsonl")
    register("jsonl", "rewardkit.records.jsonl:READER", "One JSON object a line")
    register("json", "rewardkit.records.json_document:READER", "One JSON document")
    register("csv", "rewardkit.records.csv_table:READER", "A table with a header row: comma, semicolon, tab or bar")
    register("inspect_ai", "rewardkit.records.tools.inspect_ai:READER", "Logs of inspect_ai, .eval and .json")
    register(
        "reasoning_gym", "rewardkit.records.tools.reasoning_gym:READER", "Results of reasoning-gym's evaluation scripts"
    )
    register(
        "cruxeval", "rewardkit.records.tools.cruxeval:READER", "Generations by id with their marks, as CRUXEval writes"
    )
    register("opencompass", "rewardkit.records.tools.opencompass:READER", "Predictions of OpenCompass")
    register(
        "harbor", "rewardkit.records.tools.harbor:READER", "Rewards of a Harbor trial, which hold no text: refused"
    )
    register("parquet", "rewardkit.records.parquet:READER", "Parquet")
    register(
        "arrow", "rewardkit.records.arrow_file:READER", "Arrow IPC files and streams, and what datasets saves to disk"
    )
    register(
        "eval_protocol", "rewardkit.records.tools.eval_protocol:READER", "Rows of eval-protocol with their results"
    )
    register("lm_eval", "rewardkit.records.tools.lm_eval:READER", "Samples of lm-evaluation-harness (--log_samples)")
    register("nemo_gym", "rewardkit.records.tools.nemo_gym:READER", "Rollouts of NeMo-Gym")
    register(
        "openai_batch", "rewardkit.records.tools.openai_batch:READER", "Output of an OpenAI-style batch, with requests"
    )
    register("openai_chat", "rewardkit.records.tools.openai_chat:READER", "Answers of an OpenAI-style API, one a line")
    register("skyrl", "rewardkit.records.tools.skyrl:READER", "Evaluation dumps of SkyRL")
    register(
        "verifiers_results",
        "rewardkit.records.tools.verifiers_results:READER",
        "The results.jsonl of verifiers up to 0.3",
    )
    register(
        "verifiers_traces",
        "rewardkit.records.tools.verifiers_traces:READER",
        "The traces.jsonl of verifiers from 0.4 on",
    )
    register("verl", "rewardkit.records.tools.verl:READER", "Rollouts and validations of verl")
    register("trl", "rewardkit.records.tools.trl:READER", "Completions that TRL logs (log_completions), parquet")
    register("lighteval", "rewardkit.records.tools.lighteval:READER", "Details of lighteval, parquet")


@hookimpl
def rewardkit_backends(register: Register) -> None:
    register("grpo", "trainer_backend.backend:run_file", "GRPO with LoRA, on one machine")


@hookimpl
def rewardkit_commands(register: Register) -> None:
    register("eval", "rewardkit.cli.eval:command", "Score saved generations with one or more rewards.")
    register("train", "rewardkit.cli.train:command", "Train a model with rewards, by GRPO.")
    register("plan", "rewardkit.cli.plan:command", "Say what memory and time a training run will take.")
    register("plot", "rewardkit.cli.plot:command", "Draw the curves of a training run.")
    register("list", "rewardkit.cli.list:command", "List rewards, verifiers, readers and backends.")
    register("compare", "rewardkit.cli.compare:command", "Compare two runs, or two rewards on the same completions.")
    register("merge", "rewardkit.cli.merge:command", "Put the shards of one run together (eval --shard i/n).")
    register("show", "rewardkit.cli.show:command", "Show one reward, or a saved run and its completions.")
    register("try", "rewardkit.cli.try_:command", "Score one text and explain the result.")
    register("sandbox", "rewardkit.cli.sandbox:command", "Say which sandbox level works here, and test it.")
    register("plugins", "rewardkit.cli.plugins:command", "List installed plugins, and what is wrong with broken ones.")
    register("new", "rewardkit.cli.new:command", "Make a plugin to start from.")
