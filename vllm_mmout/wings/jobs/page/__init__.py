"""The server's web page: static files below ``/mmout``, which call the public routes below ``/v1``."""
