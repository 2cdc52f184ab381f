"""Compatibility with the original, proven on what it really wrote."""
