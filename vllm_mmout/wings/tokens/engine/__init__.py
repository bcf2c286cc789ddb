"""Engine classes that decode pictures and sounds in the answers of models that generate them as tokens."""
