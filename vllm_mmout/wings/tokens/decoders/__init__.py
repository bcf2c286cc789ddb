"""Decoders of token models: what turns codes into pixels or samples, one a file, loaded from local folders."""
