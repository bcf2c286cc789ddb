"""Results as they leave: encoded, streamed, sent in pieces, or stored to be fetched."""
