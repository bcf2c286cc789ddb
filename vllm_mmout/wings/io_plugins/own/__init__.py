"""Our IO Processor plugin, ``mmout``, by which clients of TerraTorch's plugin are served."""
