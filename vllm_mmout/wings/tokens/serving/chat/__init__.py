"""Chats whose answers hold pictures or sounds. vLLM's handler makes the text, and this package adds the media."""
