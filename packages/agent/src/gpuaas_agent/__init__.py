"""The node agent: realises allocations as machines on one host.

It dials out to the platform and never listens. What exists is read from LXD each time; nothing that
matters lives only in the agent's memory, so it may be killed at any moment.
"""

from importlib.metadata import version

__version__ = version("gpuaas-agent")
