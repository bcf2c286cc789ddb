"""One request that is many of the engine's: a scene as tiles, fanned out and joined again."""
