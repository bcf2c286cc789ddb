"""The server's page: static files below ``/mmout``, which use the routes below ``/v1`` as any client does."""
