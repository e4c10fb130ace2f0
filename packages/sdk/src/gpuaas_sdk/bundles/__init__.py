"""Debian packages for an app: made into one file on a host, installed from it on machines without a network."""
