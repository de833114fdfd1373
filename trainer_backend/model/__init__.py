"""Language models for training: loading, LoRA, the forward pass without a head, layer inputs in host memory."""
