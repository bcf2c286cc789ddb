"""Responses: results that are encoded, streamed, sent in pieces, or stored."""
