"""What runs in the engine's processes: the pooler that reduces, the core's waiting, its memory."""
