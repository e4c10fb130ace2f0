# Functions that the Prolog, the Epilog and the removal share. `jobs` has a directory for each job on this machine.
jobs=/run/gpuaas-slurm/jobs
controllers="memory pids cpu"

# hierarchy CONTROLLER: where its groups are made; nothing where the machine has it not. systemd does not mount `cpu`
# where the host keeps it apart from `cpuacct`: it is mounted here.
hierarchy() {
    local own=/run/gpuaas-slurm/$1
    if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
        grep -qw "$1" /sys/fs/cgroup/cgroup.controllers || return 0
        echo /sys/fs/cgroup/slurm_jobs
    elif [ -e "/sys/fs/cgroup/$1/cgroup.procs" ]; then
        echo "/sys/fs/cgroup/$1"
    elif grep -q ":$1:" /proc/self/cgroup; then
        if [ ! -e "$own/cgroup.procs" ]; then
            mkdir -p -m 0755 "$own" && mount -t cgroup -o "$1,nosuid,nodev,noexec" cgroup "$own" 2>/dev/null || return 0
        fi
        echo "$own"
    fi
}

# end_processes JOB: everything in its groups, whoever started it and however it has left its session. No new process
# can be made meanwhile.
end_processes() {
    local end=$((SECONDS + 20)) group pids
    for group in "$jobs/$1"/memory "$jobs/$1"/pids "$jobs/$1"/cpu; do
        [ -e "$group/pids.max" ] && echo 0 >"$group/pids.max"
    done
    for group in "$jobs/$1"/pids "$jobs/$1"/memory "$jobs/$1"/cpu; do
        [ -e "$group/cgroup.procs" ] || continue
        while pids=$(cat "$group/cgroup.procs") && [ -n "$pids" ]; do
            kill -KILL $pids 2>/dev/null
            if [ "$SECONDS" -ge "$end" ]; then
                echo "job $1 has processes that do not end:" $pids >&2
                return 1
            fi
            sleep 0.02
        done
    done
    return 0
}

# sweep: all jobs of this machine, and the hierarchy that was mounted for them. Only where no slurmd runs any more.
sweep() {
    local directory name group
    for directory in "$jobs"/[0-9]*; do
        [ -d "$directory" ] || continue
        end_processes "${directory##*/}" && remove_groups "${directory##*/}"
    done
    # Those whose directory somebody has removed.
    for group in /sys/fs/cgroup/*/slurm_job_[0-9]* /run/gpuaas-slurm/cpu/slurm_job_[0-9]*; do
        [ -d "$group" ] || continue
        kill -KILL $(cat "$group/cgroup.procs") 2>/dev/null
        for name in 1 2 3 4 5; do rmdir "$group" 2>/dev/null && break; sleep 0.1; done
    done
    for name in $controllers; do
        if mountpoint -q "/run/gpuaas-slurm/$name"; then umount "/run/gpuaas-slurm/$name" || true; fi
    done
    if [ -d /sys/fs/cgroup/slurm_jobs ]; then rmdir /sys/fs/cgroup/slurm_jobs || true; fi
}

# remove_groups JOB: its groups, its private file systems and its directory.
remove_groups() {
    local name group
    for name in tmp shm user; do
        if mountpoint -q "$jobs/$1/$name"; then umount "$jobs/$1/$name" || umount -l "$jobs/$1/$name"; fi
    done
    for name in $controllers; do
        group=$(readlink -f "$jobs/$1/$name") || continue
        case $group in */slurm_job_"$1") if [ -d "$group" ]; then rmdir "$group" || return 1; fi ;; esac
    done
    rm -rf "${jobs:?}/$1"
}
