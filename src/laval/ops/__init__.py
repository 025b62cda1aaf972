"""Pure tensor functions without state. Every fast one has a naive twin in the tests."""
