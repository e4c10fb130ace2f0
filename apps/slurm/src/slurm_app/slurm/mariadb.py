"""A private MariaDB for the accounting: no TCP port, no password, one unit of our own."""

from gpuaas_sdk.machines.base import Machine
from slurm_app.slurm.config import DATABASE, HEADER
from slurm_app.slurm.script import put_file, step

UNIT = "slurm-mariadb.service"
UNIT_FILE = f"/etc/systemd/system/{UNIT}"
CONFIGURATION = "/etc/mysql/slurm-mariadb.cnf"
DATA = "/var/lib/mysql"
USER = "mysql"
_SYSTEM_TABLES = ("system_tables", "performance_tables", "system_tables_data")


def render_configuration() -> str:
    """The sizes are the smallest that slurmdbd does not complain about; the pool is taken as it is used."""
    return (
        f"{HEADER}[mariadbd]\n"
        f"datadir={DATA}\n"
        # Where the client library looks when slurmdbd says localhost.
        "socket=/run/mysqld/mysqld.sock\n"
        "skip-networking\n"
        "skip-name-resolve\n"
        "innodb_buffer_pool_size=512M\n"
        "innodb_log_file_size=64M\n"
        "innodb_lock_wait_timeout=900\n"
        "max_allowed_packet=16M\n"
        "performance_schema=OFF\n"
    )


def render_unit() -> str:
    return (
        f"{HEADER}[Unit]\nDescription=MariaDB for Slurm accounting\nBefore=slurmdbd.service\n"
        "StartLimitIntervalSec=0\n"
        f"[Service]\nType=notify\nUser={USER}\nGroup={USER}\n"
        "RuntimeDirectory=mysqld\nRuntimeDirectoryMode=0755\n"
        f"ExecStart=/usr/sbin/mariadbd --defaults-file={CONFIGURATION}\n"
        "Restart=on-failure\nRestartSec=1\nTimeoutStartSec=60\nPrivateTmp=yes\nProtectHome=yes\n"
        "[Install]\nWantedBy=multi-user.target\n"
    )


def render_initialisation(data: str) -> str:
    """bash that fills an empty data directory, as mariadb-install-db does, with the tables that the server needs.

    Not with its help texts, its procedures for geometry and its schema of views for people, which nobody reads here
    and which are two thirds of the work. Root of the machine is root of the database, by the socket.
    """
    tables = " ".join(f"/usr/share/mysql/mysql_{name}.sql" for name in _SYSTEM_TABLES)
    return (
        "{ printf '%s\\n' 'CREATE DATABASE mysql;' 'USE mysql;' \"SET @auth_root_socket = 'root';\"\n"
        f"    cat {tables}; }} |\n"
        f"    mariadbd --defaults-file={CONFIGURATION} --datadir={data} --user={USER} --bootstrap \\\n"
        "    --skip-name-resolve --innodb-flush-method=nosync --enforce-storage-engine= --log-warnings=0\n"
    )


# The data directory is made beside its place and moved there when whole, so a killed run leaves no half one.
_INITIALISE = f"""
getent group {USER} >/dev/null || groupadd --system {USER}
getent passwd {USER} >/dev/null || useradd --system --gid {USER} --home-dir /nonexistent --no-create-home \\
    --shell /usr/sbin/nologin {USER}
initialise() {{
{render_initialisation(f"{DATA}.new")}}}
if [ ! -d {DATA}/mysql ]; then
    rm -rf {DATA}.new
    install -d -o {USER} -g {USER} -m 0700 {DATA}.new
    initialise >"$state/mariadb-install.log" 2>&1 || {{
        tail -n 20 "$state/mariadb-install.log" >&2
        exit 1
    }}
    rm -rf {DATA}
    mv {DATA}.new {DATA}
fi
"""
_GRANT = f"""
mariadb --protocol=socket --skip-column-names --batch <<'SQL'
CREATE DATABASE IF NOT EXISTS {DATABASE};
CREATE USER IF NOT EXISTS slurm@localhost IDENTIFIED VIA unix_socket;
GRANT ALL ON {DATABASE}.* TO slurm@localhost;
SELECT CONCAT('mariadb=', VERSION());
SQL
"""


def start_script() -> str:
    return step(
        put_file(CONFIGURATION, render_configuration()),
        _INITIALISE,
        put_file(UNIT_FILE, render_unit()),
        f"ensure_unit_current {UNIT} {CONFIGURATION} {UNIT_FILE}",
        _GRANT,
    )


async def ensure_mariadb_running(machine: Machine) -> dict[str, str]:
    result = await machine.run_step("start-database", start_script())
    return result.values
