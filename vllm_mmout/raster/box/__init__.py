"""The window of pixels that a bounding box in coordinates covers."""
