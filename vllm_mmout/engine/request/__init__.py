"""Read the input of a request, send the request to the engine, and decode the engine's output."""
