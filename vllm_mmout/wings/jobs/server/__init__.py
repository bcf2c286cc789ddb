"""Server side of jobs: requests run in the background, and clients poll, fetch and cancel them by id."""
