"""User requests that are cut into many engine requests, such as scenes of tiles, and the joining of their results."""
