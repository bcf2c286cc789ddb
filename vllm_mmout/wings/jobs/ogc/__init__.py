"""Interface to the jobs of scenes that follows the standard OGC API - Processes - Part 1: Core 1.0 (OGC 18-062r2)."""
