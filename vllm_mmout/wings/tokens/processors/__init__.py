"""Output processors for models that generate pictures or sounds as tokens."""
