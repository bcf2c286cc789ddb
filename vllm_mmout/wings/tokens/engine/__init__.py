"""Engines that generate tokens, some of which are pictures or sound: their way from the stream to the objects."""
