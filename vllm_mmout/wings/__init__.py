"""What stands on the core and can be taken off: each folder is one wing, of which the core imports nothing."""
