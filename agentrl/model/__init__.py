"""Model directories: HF config, tokenizer, small-model builder, safetensors."""
