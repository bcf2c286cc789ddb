"""What a client's request names or holds, opened: uploads, addresses, local files, data URLs."""
