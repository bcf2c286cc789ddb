"""Engine classes for models that generate media tokens: from the token stream to decoded objects."""
