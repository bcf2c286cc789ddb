"""Requests of a user that are many of the engine's: scenes as tiles, which are sent and joined again."""
