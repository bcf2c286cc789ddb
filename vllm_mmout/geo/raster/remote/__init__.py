"""Files on servers of http and https, read by parts where the server gives them."""
