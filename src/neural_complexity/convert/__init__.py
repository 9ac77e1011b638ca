"""What users bring, as tensors."""
