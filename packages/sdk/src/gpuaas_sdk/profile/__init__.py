"""Where people's programs find the platform and their login: what `gpuaas login` keeps, and the environment."""
