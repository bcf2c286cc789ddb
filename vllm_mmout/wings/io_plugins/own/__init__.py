"""Implement this package's IO Processor plugin ``mmout``, which serves clients written for TerraTorch's plugin."""
