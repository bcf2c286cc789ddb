"""The server side of jobs: requests that run in the background and are polled, fetched and cancelled by id."""
