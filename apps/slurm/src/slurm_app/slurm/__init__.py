"""One module per daemon, free of the platform: facts in, commands out."""
