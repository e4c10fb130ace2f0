#!/bin/bash
# The floor: what a person would type to bring up and take apart the same cluster, with the same packages and the same
# configuration, and nothing of what makes it safe (no record of what was there, no fencing, no evidence, no proof).
# Runs as root on the machine; /bench holds what all three share: the bundle, the configuration files and the way in
# which the database's first tables are made, rendered by the app itself.
set -euo pipefail
export LC_ALL=C DEBIAN_FRONTEND=noninteractive

until_true() { until "$@" >/dev/null 2>&1; do sleep 0.05; done; }
listens() { (exec 3<>"/dev/tcp/$1/$2") 2>/dev/null; }

# The lists of the bundle say which files a role takes, so apt has nothing to find out; dpkg alone is the quickest.
install_packages() { # ROLE…
    local files
    mkdir /tmp/repository
    tar -xf /bench/bundle.tar -C /tmp/repository --no-same-owner
    cd /tmp/repository
    files=$(sort -u "${@/#/needs-}" | sed 's/$/_*.deb/')
    printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
    chmod 0755 /usr/sbin/policy-rc.d
    SYSTEMD_OFFLINE=1 dpkg --force-unsafe-io --install $files >/dev/null 2>&1
    rm /usr/sbin/policy-rc.d
    for library in /usr/lib/*/pmix2/lib/libpmix.so.2; do ln -sfn libpmix.so.2 "${library%.2}"; done
    install -o munge -g munge -m 0600 /bench/munge.key /etc/munge/munge.key
    systemctl daemon-reload
    systemctl restart munge
}

start_controller() { # CLUSTER ACCOUNT USER
    cp /bench/slurm.conf /bench/plugstack.conf /bench/gres.conf /bench/gres.machine.conf /etc/slurm/
    install -o slurm -g slurm -m 0600 /bench/slurmdbd.conf /etc/slurm/slurmdbd.conf
    mkdir -p /etc/mysql /etc/systemd/system/slurmctld.service.d /etc/systemd/system/slurmdbd.service.d
    cp /bench/slurm-mariadb.cnf /etc/mysql/
    cp /bench/slurm-mariadb.service /etc/systemd/system/
    cp /bench/slurmctld.drop-in /etc/systemd/system/slurmctld.service.d/bench.conf
    cp /bench/slurmdbd.drop-in /etc/systemd/system/slurmdbd.service.d/bench.conf
    getent passwd mysql >/dev/null || useradd --system --home-dir /nonexistent --shell /usr/sbin/nologin mysql
    install -d -o mysql -g mysql -m 0700 /var/lib/mysql
    bash /bench/initialise-database >/dev/null 2>&1
    systemctl enable --now --quiet slurm-mariadb
    mariadb --protocol=socket <<'SQL'
CREATE DATABASE slurm_acct_db;
CREATE USER slurm@localhost IDENTIFIED VIA unix_socket;
GRANT ALL ON slurm_acct_db.* TO slurm@localhost;
SQL
    systemctl enable --now --quiet slurmdbd
    until_true listens 127.0.0.1 6819
    sacctmgr --immediate add cluster "$1" >/dev/null
    sacctmgr --immediate add account "$2" "cluster=$1" "description=$2" "organization=$2" >/dev/null
    sacctmgr --immediate add user "$3" "cluster=$1" "account=$2" "defaultaccount=$2" >/dev/null
    systemctl enable --now --quiet slurmctld
    until_true sh -c 'scontrol ping | grep -q "is UP"'
    until_true sh -c "scontrol show assoc_mgr users=$3 flags=assoc | grep -q 'Account=$2 '"
}

start_worker() { # ADDRESS-OF-THE-CONTROLLER
    local shape memory
    shape=$(slurmd -C | grep -Eo 'CPUs=.* ThreadsPerCore=[0-9]+')
    memory=$(awk '/^MemTotal:/ { print int($2 / 1024) }' /proc/meminfo)
    mkdir -p /etc/slurm /etc/systemd/system/slurmd.service.d
    cp /bench/gres.machine.conf /etc/slurm/
    sed "s#@conf@#$shape RealMemory=$memory#; s#@server@#$1:6817#" /bench/slurmd.drop-in \
        >/etc/systemd/system/slurmd.service.d/bench.conf
    systemctl daemon-reload
    systemctl enable --now --quiet slurmd
}

run_first_job() { # USER HOST… : srun over all of them, then a batch job until its row is in sacct
    local user=$1 nodes job
    shift
    for host in "$@"; do until_true sh -c "scontrol --oneliner show node $host | grep -Eq ' State=(IDLE|MIXED)'"; done
    nodes="--nodes=$# --ntasks-per-node=1 --nodelist=$(IFS=,; echo "$*")"
    cd /
    runuser --user "$user" -- srun $nodes hostname >/dev/null
    until_true sh -c '[ -z "$(squeue --noheader --states=COMPLETING)" ]'
    job=$(runuser --user "$user" -- sbatch --parsable $nodes --output=/dev/null --wrap=hostname)
    until_true sh -c "sacct --allocations --noheader --parsable2 --jobs=$job --format=state | grep -q COMPLETED"
}

drain_node() { # HOST
    scontrol update "nodename=$1" state=DRAIN reason=bench
    until_true sh -c "scontrol --oneliner show node $1 | grep -Eq ' State=IDLE[^ ]*DRAIN'"
}

forget_node() { # HOST
    until_true scontrol delete "nodename=$1"
}

remove_all() { # everything that the install brought: daemons, packages, data, configuration, users
    local units=()
    for unit in slurmd slurmctld slurmdbd slurm-mariadb munge; do
        if systemctl cat --quiet "$unit" >/dev/null 2>&1; then units+=("$unit"); fi
    done
    systemctl disable --quiet "${units[@]}" 2>/dev/null
    systemctl kill --kill-whom=all --signal=KILL "${units[@]}" 2>/dev/null || true
    systemctl stop "${units[@]}"
    dpkg-query -W -f '${binary:Package}\n' | sed 's/:.*//' | grep -Fxf /tmp/repository/names |
        xargs dpkg --force-unsafe-io --purge >/dev/null 2>&1
    rm -rf /etc/slurm /etc/munge /etc/mysql /var/lib/slurm /var/lib/munge /var/lib/mysql /tmp/repository \
        /etc/systemd/system/slurm* /usr/lib/*/pmix2
    for user in slurm munge mysql; do userdel "$user" 2>/dev/null || true; done
    systemctl daemon-reload
}

"$@"
