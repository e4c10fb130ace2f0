"""Limits of the kernel that all slices of a node share: root in each of them is one and the same user to it.

With the kernel's own values, about the thirteenth slice comes up without network: systemd in it can neither watch files
nor make keyrings for its services."""

import logging
from pathlib import Path

log = logging.getLogger(__name__)
KERNEL = Path("/proc/sys")
ENOUGH = {
    "fs/inotify/max_user_instances": 65_536,
    "fs/inotify/max_user_watches": 1_048_576,
    "kernel/keys/maxkeys": 20_000,
    "kernel/keys/maxbytes": 2_000_000,
}
"""For hundreds of slices. Each needs about ten instances and fifteen keys when it does nothing."""


def raise_limits(kernel: Path = KERNEL) -> None:
    """Raise the limits, never lower them. Where the kernel refuses, slices run as before."""
    for name, enough in ENOUGH.items():
        limit = kernel / name
        try:
            if int(limit.read_text()) < enough:
                limit.write_text(str(enough))
                log.info("raised %s to %s", name.replace("/", "."), enough)
        except (OSError, ValueError) as error:
            log.warning("cannot raise %s, which bounds how many slices can run: %s", name.replace("/", "."), error)
