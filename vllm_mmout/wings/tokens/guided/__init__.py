"""Restrict the next tokens of an answer, so that its pictures and sounds are always complete."""
