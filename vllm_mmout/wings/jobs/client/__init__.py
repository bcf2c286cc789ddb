"""The client of a server's jobs: uploads scenes, follows their jobs, downloads results; imports no engine."""
