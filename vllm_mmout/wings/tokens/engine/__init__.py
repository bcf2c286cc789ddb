"""Engine classes for models that generate pictures or sounds as tokens, which decode these in the answers."""
