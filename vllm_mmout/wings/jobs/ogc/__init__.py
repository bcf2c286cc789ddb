"""Facade over the jobs of scenes, as OGC API - Processes - Part 1: Core 1.0 (OGC 18-062r2) defines it."""
