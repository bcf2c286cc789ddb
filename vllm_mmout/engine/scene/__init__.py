"""Run scenes, which are user requests cut into many tiles, and join the results of the tiles."""
