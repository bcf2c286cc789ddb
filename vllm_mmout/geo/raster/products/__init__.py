"""What the metadata of satellite products say of the numbers in their files."""
