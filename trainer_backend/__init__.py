"""The bundled GRPO backend. It uses rewardkit's types, engine and registry; rewardkit never imports it."""
