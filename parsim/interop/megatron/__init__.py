"""Training configurations of other tools as scenarios: Megatron-LM, DeepSpeed, accelerate, Hugging Face, LLaMA-Factory."""
