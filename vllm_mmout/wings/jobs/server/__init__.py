"""Jobs: scenes that are run behind the answer, and looked at, fetched and cancelled by their ids."""
