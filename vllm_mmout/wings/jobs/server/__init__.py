"""Server side of jobs. A job runs a request in the background. Clients poll, fetch and cancel the job by its id."""
