# Runs as root before a job starts here: makes its groups, its private file systems and the list of its GPUs. Whatever
# fails here refuses the node: Slurm drains it and puts the job back.
set -u
here=/usr/lib/gpuaas-slurm
refuse() { echo "gpuaas: $*" >&2; exit 1; }
case ${SLURM_JOB_ID:-} in '' | *[!0-9]*) refuse "no job" ;; esac
(cd "$here" && sha256sum --check --strict --quiet SHA256SUMS) >&2 || refuse "the plug-in is not the cluster's own"
job=$jobs/$SLURM_JOB_ID
# Where Slurm itself holds jobs by control groups, it limits them too; a second group would take them out of its own.
if grep -qsx 'ProctrackType=proctrack/cgroup' /run/slurm/conf/slurm.conf; then controllers=""; fi
mkdir -p -m 0755 "${jobs%/*}" && mkdir -p -m 0711 "$jobs" || refuse "cannot make $jobs"
umask 077
# What an earlier run of the same job has left.
if [ -e "$job" ]; then end_processes "$SLURM_JOB_ID" && remove_groups "$SLURM_JOB_ID" || refuse "job $SLURM_JOB_ID is here"; fi
mkdir -p "$job" || refuse "cannot make $job"
unified=/sys/fs/cgroup/slurm_jobs
if [ -e /sys/fs/cgroup/cgroup.controllers ] && [ ! -d $unified ]; then
    mkdir $unified && for name in $controllers; do echo "+$name" >$unified/cgroup.subtree_control; done
fi
for name in $controllers; do
    root=$(hierarchy $name)
    if [ -z "$root" ]; then continue; fi
    group=$root/slurm_job_$SLURM_JOB_ID
    mkdir -p -m 0755 "$group" || refuse "cannot make $group"
    ln -s "$group" "$job/$name"
done
# Without these two a job could take the machine from the others.
for name in ${controllers:+memory pids}; do [ -e "$job/$name" ] || refuse "this machine has no control group for $name"; done
for name in tmp shm user; do
    mode=1777
    if [ $name = user ]; then mode=0755; fi
    mkdir "$job/$name" && mount -t tmpfs -o "nosuid,nodev,mode=$mode,size=1m" tmpfs "$job/$name" ||
        refuse "cannot make the private $name of job $SLURM_JOB_ID"
done
: >"$job/closed" && chmod 0000 "$job/closed" || refuse "cannot make $job/closed"
# The cores that Slurm counts have so many processors.
sed -n 's/.* ThreadsPerCore=\([0-9]*\).*/\1/p' /etc/systemd/system/slurmd.service.d/gpuaas.conf >"$job/threads"
# Last: a job without this list does not start. slurmd's word; the job's own environment comes from its user.
echo "${SLURM_JOB_GPUS:-}" >"$job/gpus" || refuse "cannot write the GPUs of job $SLURM_JOB_ID"
