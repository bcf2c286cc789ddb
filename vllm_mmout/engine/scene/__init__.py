"""Scenes: user requests that are cut into many tiles, whose results are joined again."""
