"""HTTP routes of models that generate tokens: pictures and speech from texts."""
