"""Serve background jobs by the standard OGC API - Processes - Part 1: Core 1.0 (OGC 18-062r2)."""
