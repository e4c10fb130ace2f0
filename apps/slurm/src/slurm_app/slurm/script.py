"""Pieces of bash that the steps are made of. Everything that varies is quoted here or validated in `names`."""

import shlex
from collections.abc import Iterable

STATE_DIRECTORY = "/var/lib/gpuaas-slurm"
BASELINE = f"{STATE_DIRECTORY}/baseline"
"""The snapshot of the machine before the app came."""
_END_OF_FILE = "GPUAAS_END_OF_FILE"
DAEMONS_ONLY = "daemons_only() { awk -F: '$3 < 1000 || $3 >= 60000 { print $1 }'; }"
PEOPLE_ONLY = "people_only() { awk -F: '$3 >= 1000 && $3 < 60000 { print $1 }'; }"

# put PATH MODE OWNER: replace a file by standard input, atomically, and only if it differs.
# wait_for SECONDS WHAT COMMAND…: poll; on the deadline say what was waited for and what the command says.
# daemons_only: of entries of passwd or group, those with the number of a daemon. The others are people's, whatever
#   they are called: an account of theirs is neither used nor removed.
# ensure_enabled UNIT: from the next boot on.
# ensure_reloaded: systemd reads its units anew, which takes 0.2 s, only where a mark asks for it. systemd's own
#   NeedDaemonReload stays "no" for a drop-in directory that is new.
# ensure_unit_current UNIT FILE…: restart only if the unit is not running with exactly these files. The stamp
#   is written after the restart, so a crash between a new file and its restart is made good by the next run.
#   The same holds for the mark above.
PRELUDE = f"""\
export LC_ALL=C
state={STATE_DIRECTORY}
{DAEMONS_ONLY}
put() {{
    local new="$1.gpuaas-new"
    (umask 077 && cat >"$new")
    chown "$3" "$new"
    chmod "$2" "$new"
    if cmp -s "$new" "$1" && [ "$(stat -c '%a %U:%G' "$1")" = "${{2#0}} $3" ]; then
        rm -f "$new"
    else
        case $1 in /etc/systemd/*) mkdir -p "$state" && touch "$state/reload" ;; esac
        mv -f "$new" "$1"
    fi
}}
wait_for() {{
    local limit=$1 what=$2 end=$((SECONDS + $1))
    shift 2
    until "$@" >/dev/null 2>&1; do
        if [ "$SECONDS" -ge "$end" ]; then
            echo "waited $limit s for $what" >&2
            "$@" >&2 || true
            return 1
        fi
        sleep 0.05
    done
}}
port_open() {{ (exec 3<>"/dev/tcp/$1/$2") 2>/dev/null; }}
ensure_enabled() {{
    if ! systemctl is-enabled --quiet "$1"; then
        touch "$state/reload"
        systemctl enable --quiet --no-reload "$1"
    fi
}}
ensure_reloaded() {{
    if [ -e "$state/reload" ]; then
        systemctl daemon-reload
        rm -f "$state/reload"
    fi
}}
ensure_unit_current() {{
    local unit=$1 stamp="$state/applied/$1" now
    shift
    mkdir -p "$state/applied"
    now=$(sha256sum "$@")
    ensure_enabled "$unit"
    if systemctl is-active --quiet "$unit" && [ "$(cat "$stamp" 2>/dev/null)" = "$now" ]; then
        return 0
    fi
    rm -f "$stamp"
    ensure_reloaded
    systemctl reset-failed "$unit" 2>/dev/null || true
    systemctl restart "$unit"
    printf '%s\\n' "$now" >"$stamp"
}}
"""

# The mpi/pmix plugin opens libpmix.so, which only the development package ships. One link makes --mpi=pmix
# work and keeps an error out of every daemon's log.
PMIX_LINK = """
for library in /usr/lib/*/pmix2/lib/libpmix.so.2; do
    if [ -e "$library" ]; then ln -sfn libpmix.so.2 "${library%.2}"; fi
done
"""


def quoted(*words: str) -> str:
    return " ".join(shlex.quote(word) for word in words)


def put_file(path: str, content: str, *, mode: str = "0644", owner: str = "root:root") -> str:
    if any(line == _END_OF_FILE for line in content.splitlines()):
        raise ValueError(f"the content of {path} holds the end marker")
    body = content if content.endswith("\n") else content + "\n"
    return f"put {quoted(path, mode, owner)} <<'{_END_OF_FILE}'\n{body}{_END_OF_FILE}\n"


def step(*pieces: str) -> str:
    return PRELUDE + "\n".join(pieces) + "\n"


def restart_policy(after: Iterable[str] = ()) -> str:
    """A drop-in: Debian's units stay down after a crash, and a boot may start them before what they need."""
    order = " ".join(after)
    ordering = f"After={order}\n" if order else ""
    return f"[Unit]\n{ordering}StartLimitIntervalSec=0\n[Service]\nRestart=on-failure\nRestartSec=1\n"
