"""Optional extensions of the core. Each folder is one wing, which can be deleted, as the core never imports wings."""
