"""Transformers that spend less: fewer tokens through the middle, fewer layers for the easy tokens."""

__version__ = "0.1.0"
