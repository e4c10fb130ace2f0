"""The agent's record of a host that it hands over, on disk before it acts on it."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gpuaas_agent.files import sync_directory, write_atomically

RECORD_FILE = "host.json"


@dataclass(frozen=True)
class HostRecord:
    allocation_id: str
    task_id: str
    ready: bool = False
    """Set last: without it the host is as an interrupted attempt left it, and nobody has used it."""
    made: list[str] = field(default_factory=list)
    """Directories that were not there before, outermost first."""
    restart_task: str = ""
    restart_from: str = ""
    """The boot in which that task asked for a reboot: in another one it has happened."""


class HostRecordFile:
    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / RECORD_FILE

    def load(self) -> HostRecord | None:
        if not self._path.exists():
            return None
        return HostRecord(**json.loads(self._path.read_text()))

    def save(self, record: HostRecord) -> HostRecord:
        write_atomically(self._path, json.dumps(asdict(record)).encode(), mode=0o600)
        return record

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)
        sync_directory(self._path.parent)
