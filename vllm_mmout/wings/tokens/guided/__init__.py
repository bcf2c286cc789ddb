"""Answers whose media are whole: requests that ask for it are left the tokens of the layout alone."""
