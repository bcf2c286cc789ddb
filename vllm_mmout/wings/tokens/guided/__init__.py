"""Guided answers: requests that ask for complete media may only sample tokens that fit the layout."""
