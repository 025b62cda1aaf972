"""Hugging Face models and configurations, and the default model that laval can always find."""
