"""Chats whose answers hold pictures or sounds: vLLM's own handler makes the text, we put the media beside it."""
