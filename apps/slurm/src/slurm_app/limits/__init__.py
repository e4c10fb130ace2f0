"""Limits that hold for ordinary users: a SPANK plug-in, a Prolog and an Epilog, as a Debian package of the bundle."""
