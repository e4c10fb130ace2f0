"""Roll call: the app to read before writing one."""
