"""Sentence pairs: from any source to checked train, validation and test splits."""
