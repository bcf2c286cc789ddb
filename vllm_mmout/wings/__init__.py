"""Optional extension packages. Each folder can be deleted, because the core never imports from it."""
