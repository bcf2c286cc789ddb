"""The web page of the server: static files below ``/mmout`` that call the public routes below ``/v1``."""
