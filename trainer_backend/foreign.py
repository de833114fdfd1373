"""Names of settings that people bring from TRL and Unsloth, and what they are here.

The error for an unknown key and the table in `docs/train_options.md` both come from here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Foreign:
    """One setting of another trainer.

    Attributes:
        name: As it is called there.
        source: "TRL", "Unsloth" or both.
        here: The key that does it, `table.key`; "" where none does.
        how: The rest of the sentence: what to write, or why there is nothing to write.
    """

    name: str
    source: str
    here: str
    how: str

    @property
    def sentence(self) -> str:
        """What to do, for a message."""
        return f"{self.source}'s {self.name} is {self.here} here: {self.how}" if self.here else f"{self.how}"


FOREIGN: tuple[Foreign, ...] = (
    Foreign("model_name", "Unsloth", "model.name", "a folder, a hub name or a .gguf file"),
    Foreign("model_name_or_path", "TRL", "model.name", "a folder, a hub name or a .gguf file"),
    Foreign("torch_dtype", "TRL", "model.dtype", "the same names"),
    Foreign("model_init_kwargs", "TRL", "model.dtype", "dtype, revision and load_in_4bit are keys of [model]"),
    Foreign("load_in_8bit", "Unsloth", "model.load_in_4bit", "4 bits are what is supported; without it, bfloat16"),
    Foreign(
        "trust_remote_code", "TRL", "", "code that comes with a model is never run; convert the model to a known class"
    ),
    Foreign("max_seq_length", "Unsloth", "data.max_prompt_length", "and grpo.max_completion_length: their sum"),
    Foreign("max_lora_rank", "Unsloth", "", "max_lora_rank is not needed: the sampler takes lora.r"),
    Foreign("lora_r", "TRL", "lora.r", "the same number"),
    Foreign("lora_rank", "Unsloth", "lora.r", "the same number"),
    Foreign("lora_target_modules", "TRL", "lora.target_modules", 'the same names, or "all-linear"'),
    Foreign("use_peft", "TRL", "", "use_peft is not needed: an adapter is what is trained, always"),
    Foreign("use_gradient_checkpointing", "Unsloth", "memory.gradient_checkpointing", 'and memory.mode = "offload"'),
    Foreign("fast_inference", "Unsloth", "rollout.engine", 'engine = "vllm"'),
    Foreign("use_vllm", "TRL", "rollout.engine", 'engine = "vllm"'),
    Foreign("vllm_mode", "TRL", "rollout.engine", 'vLLM always runs in this process, which TRL calls "colocate"'),
    Foreign(
        "vllm_server_base_url", "TRL", "", "there is no server mode: with rollout.engine vLLM runs in this process"
    ),
    Foreign("gpu_memory_utilization", "Unsloth", "rollout.kv_cache_memory_gb", "in GB, not as a share of the device"),
    Foreign("vllm_gpu_memory_utilization", "TRL", "rollout.kv_cache_memory_gb", "in GB, not as a share of the device"),
    Foreign(
        "vllm_max_model_length",
        "TRL",
        "",
        "the longest context follows from max_prompt_length and max_completion_length",
    ),
    Foreign("vllm_tensor_parallel_size", "TRL", "", "each process samples its own groups; start several processes"),
    Foreign("vllm_enable_sleep_mode", "TRL", "", "the memory planner decides what is released; see memory.fit_in"),
    Foreign("unsloth_vllm_standby", "Unsloth", "", "the memory planner decides what is released; see memory.fit_in"),
    Foreign("float8_kv_cache", "Unsloth", "rollout.kv_cache_dtype", 'kv_cache_dtype = "fp8"'),
    Foreign("vllm_sampling_params", "Unsloth", "rollout.sampling", "a table of vLLM's SamplingParams, by name"),
    Foreign("generation_kwargs", "TRL", "rollout.sampling", "a table, by the sampler's own names"),
    Foreign("vllm_importance_sampling_cap", "TRL", "grpo.vllm_importance_sampling_clip_max", "the same number"),
    Foreign("generation_batch_size", "TRL", "", "what is sampled in one step is what is trained on in one step"),
    Foreign(
        "steps_per_generation",
        "TRL",
        "",
        "what is sampled in one step is what is trained on in one step; num_iterations uses it again",
    ),
    Foreign("per_device_eval_batch_size", "TRL", "", "held-out prompts are sampled in batches that fit"),
    Foreign("num_generations_eval", "TRL", "data.eval_samples", "beside one greedy completion"),
    Foreign("max_length", "TRL", "grpo.max_completion_length", "tokens of the completion alone"),
    Foreign("max_new_tokens", "TRL", "grpo.max_completion_length", "the same number"),
    Foreign("warmup_ratio", "TRL", "grpo.warmup_steps", "in steps"),
    Foreign(
        "reward_weights", "TRL", "reward.total", 'weights stand in the formula: total = "gsm8k + 0.1*think_format"'
    ),
    Foreign("reward_funcs", "TRL", "reward.total", 'a formula of names: total = "gsm8k + 0.1*think_format"'),
    Foreign("multi_objective_aggregation", "TRL", "grpo.advantage", '"normalize_then_sum" is advantage = "gdpo"'),
    Foreign("use_bias_correction_kl", "TRL", "grpo.loss_options", 'on by default; off: kl_gradient = "plain"'),
    Foreign("off_policy_mask_threshold", "TRL", "grpo.loss_options", "off_policy_threshold"),
    Foreign("sapo_temperature_pos", "TRL", "grpo.loss_options", "tau_positive"),
    Foreign("sapo_temperature_neg", "TRL", "grpo.loss_options", "tau_negative"),
    Foreign("vespo_k_pos", "TRL", "grpo.loss_options", "vespo_k = [for A >= 0, for A < 0]"),
    Foreign("vespo_k_neg", "TRL", "grpo.loss_options", "vespo_k = [for A >= 0, for A < 0]"),
    Foreign("vespo_lambda_pos", "TRL", "grpo.loss_options", "vespo_lambda = [for A >= 0, for A < 0]"),
    Foreign("vespo_lambda_neg", "TRL", "grpo.loss_options", "vespo_lambda = [for A >= 0, for A < 0]"),
    Foreign("use_adaptive_entropy", "TRL", "grpo.entropy_coef", "a fixed weight"),
    Foreign("sync_ref_model", "TRL", "", "the reference stays what it was at the start"),
    Foreign("disable_dropout", "TRL", "lora.lora_dropout", "0 is the default"),
    Foreign("cast_lm_head_to_fp32", "TRL", "", "log-probs are float32 always"),
    Foreign("use_liger_kernel", "TRL", "", "use_liger_kernel is not needed: logits are never stored"),
    Foreign("use_liger_loss", "TRL", "", "use_liger_loss is not needed: logits are never stored"),
    Foreign("unsloth_num_chunks", "Unsloth", "memory.token_budget", "chunks are sized by bytes"),
    Foreign("unsloth_grpo_mini_batch", "Unsloth", "memory.token_budget", "tokens of a micro-step"),
    Foreign("gradient_checkpointing_kwargs", "TRL", "memory.mode", "nothing else to set"),
    Foreign("bf16", "TRL", "model.dtype", 'dtype = "bfloat16"'),
    Foreign("fp16", "TRL", "model.dtype", 'dtype = "float16"'),
    Foreign("output_dir", "TRL", "run.dir", "the same path"),
    Foreign("random_state", "Unsloth", "run.seed", "the same number"),
    Foreign("data_seed", "TRL", "run.seed", "one seed for all"),
    Foreign("save_strategy", "TRL", "run.save_steps", "a number of steps"),
    Foreign("logging_dir", "TRL", "run.dir", "the log lies in the run's folder"),
    Foreign("log_completions", "TRL", "run.keep_generations", "they go to generations.jsonl"),
    Foreign("wandb_log_unique_prompts", "TRL", "run.keep_generations", "they go to generations.jsonl"),
    Foreign("resume_from_checkpoint", "TRL", "", "start with rewardkit train FILE --resume RUN"),
    Foreign("remove_unused_columns", "TRL", "", "columns stay: rewards may ask for any of them"),
    Foreign("dataset_name", "TRL", "data.train", "a file; save a data set from the hub with its to_json"),
    Foreign("train_dataset", "TRL", "data.train", "a file"),
    Foreign("eval_dataset", "TRL", "data.eval", "a file"),
    Foreign("lr", "TRL", "grpo.learning_rate", "the same number"),
    Foreign("batch_size", "TRL", "grpo.per_device_train_batch_size", "completions of a step, before accumulation"),
    Foreign("kl_coef", "TRL", "grpo.beta", "the same number"),
    Foreign("epsilon_low", "TRL", "grpo.epsilon", "the same number"),
)
"""Settings that are called otherwise here, or that nothing needs. Names that mean the same here are not listed."""

BY_NAME = {one.name.lower(): one for one in FOREIGN}
"""The same by name, in lower case."""
