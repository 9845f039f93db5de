"""The only package that reads or writes XML."""
