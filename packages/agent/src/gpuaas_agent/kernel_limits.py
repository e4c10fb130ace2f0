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
"""For hundreds of slices. Each needs about ten instances when it does nothing. Slices that were started by an earlier
version, without a filter of system calls, also need about fifteen keys."""
PROCESSES = "kernel/pid_max"
PROCESSES_OF_THE_HOST = 16_384
MOST_PROCESSES = 4_194_304
"""The kernel has no larger ids."""

CAVEATS = (
    "Slices of this host have one map of users, so the kernel counts some things for all of them together. One slice "
    "can take from its neighbours: inotify instances and watches, descriptors on their way through Unix sockets, POSIX "
    "message queues, queued signals.",
)
"""Limits that all slices share, for the node's operators. docs/explanation/shared-kernel.md has the numbers."""


def raise_limits(kernel: Path = KERNEL, *, processes_of_slices: int = 0) -> None:
    """Raise the limits, never lower them. Where the kernel refuses, slices run as before."""
    # Were there fewer process ids than all slices may use together, one could still take those of another.
    wanted = ENOUGH | {PROCESSES: min(processes_of_slices + PROCESSES_OF_THE_HOST, MOST_PROCESSES)}
    for name, enough in wanted.items():
        limit = kernel / name
        try:
            if int(limit.read_text()) < enough:
                limit.write_text(str(enough))
                log.info("raised %s to %s", name.replace("/", "."), enough)
        except (OSError, ValueError) as error:
            log.warning("cannot raise %s, which bounds how many slices can run: %s", name.replace("/", "."), error)
