"""Limits attacked on a real slice, as an ordinary user: everything here runs in jobs of `gpuaas`, who has sudo outside.

The slice starts from the snapshot with the packages; what a test breaks it puts right again.
"""

import shlex
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from gpuaas_contract.instances import ConditionStatus
from slurm_app.limits.package import DIRECTORY
from slurm_app.slurm import limit_probe, nodes, phantoms

from .kept_cluster import Cluster, read_pids
from .real_machine import assert_clean, wait_for
from .victim import INSTALLED, Victim

pytestmark = [pytest.mark.machines, pytest.mark.asyncio(loop_scope="session")]

LIMIT = "over its memory limit: limit 100 MiB, use 100 MiB"
OUTPUT = "/home/gpuaas/limits.out"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster(victim: Victim) -> AsyncIterator[Cluster]:
    cluster = Cluster(victim.slices, victim.digest, victim.machine, (victim.machine,))
    await victim.slices.go_back(victim.machine, INSTALLED, cluster)
    await cluster.platform.deploy()
    # The stand-ins are closed to users by their mode; real GPUs are not.
    assert (await cluster.head.read("chmod 0666 /dev/nvidia0 /dev/nvidia1")).ok
    yield cluster
    assert (await cluster.head.read("rm -f /home/gpuaas/limits.out* /home/gpuaas/expect-*")).ok
    assert_clean((await cluster.run("decommission")).result)
    await victim.slices.assert_as_before(victim.machine)
    victim.slices.give_up(victim.machine)


async def srun(cluster: Cluster, script: str, options: str = "--mem=100M", *, seconds: int = 60) -> str:
    """Standard output and error of a job, whatever its exit status."""
    command = f"timeout {seconds} srun {options} bash -c {shlex.quote(script)}"
    result = await cluster.head.read(
        f"cd /; runuser -u gpuaas -- {command} </dev/null 2>&1 || true", timeout=seconds + 9
    )
    await cluster.wait_until_idle()
    return result.stdout


async def accounting(cluster: Cluster, job: str) -> str:
    row = f"timeout 20 sacct -X --noheader --parsable2 --jobs={job} --format=state,exitcode,admincomment"
    return (await wait_for(cluster.head, f"the row of job {job}", f"{row} | grep -E 'FAILED|COMPLETED'")).strip()


async def test_the_deploy_has_proven_every_limit(cluster: Cluster) -> None:
    (said,) = [each for each in cluster.platform.instance.conditions if each.type == limit_probe.CONDITION]
    assert (said.status, said.reason) == (ConditionStatus.TRUE, "ProvenByJob"), said.message


async def test_a_job_over_its_memory_is_ended_whole_and_says_why(cluster: Cluster) -> None:
    """The kernel takes one process, a child; the script would go on."""
    bomb = "(head -c 900M /dev/zero | tail | wc -c); sleep 500; echo survived"
    submitted = await cluster.head.read(
        f"cd /; runuser -u gpuaas -- sbatch --wait --parsable --mem=100M --output={OUTPUT} --wrap={shlex.quote(bomb)} "
        "| cut -d' ' -f1 || true",
        timeout=60,
    )
    job = submitted.stdout.split()[0]
    written = (await cluster.head.read(f"cat {OUTPUT}")).stdout
    assert [line for line in written.splitlines() if f"job {job} is {LIMIT}" in line], written
    assert "survived" not in written
    assert (await accounting(cluster, job)).startswith(f"FAILED|0:9|{LIMIT}")
    assert LIMIT in await srun(cluster, "exec tail /dev/zero"), "where the task itself is what the kernel ends"


async def test_files_in_memory_count(cluster: Cluster) -> None:
    filled = (
        "head -c 300M /dev/zero >/dev/shm/x; stat -c %s /dev/shm/x; df --output=size -m /tmp | tail -n 1; ls -A /tmp"
    )
    said = await srun(cluster, filled)
    assert "No space left on device" in said
    assert said.split()[-2:] == ["52428800", "50"], said
    both = await srun(cluster, "head -c 300M /dev/zero >/dev/shm/x; head -c 300M /dev/zero >/tmp/x; echo survived")
    assert LIMIT in both
    assert not (await cluster.head.read("ls /dev/shm/x || ls /tmp/x")).ok, "neither is the machine's own"


async def test_a_fork_bomb_leaves_the_node_as_it_was(cluster: Cluster) -> None:
    (before,) = await read_pids(cluster.head, "slurmd.service")
    said = await srun(cluster, "cat /sys/fs/cgroup/pids/slurm_job_$SLURM_JOB_ID/pids.max; b() { b | b & }; b; sleep 3")
    assert said.split()[0] == "2048", said
    assert (await cluster.head.read("pgrep -u gpuaas -c || true")).stdout.strip() == "0"
    assert await read_pids(cluster.head, "slurmd.service") == [before]
    assert (await cluster.states())[cluster.head.hostname] == "idle"


async def test_no_process_outlives_its_job(cluster: Cluster) -> None:
    leave = """
        exec >/dev/null 2>&1
        setsid sleep 7001 &
        (setsid bash -c 'sleep 7002 & disown' &)
        perl -e 'use POSIX; exit if fork; POSIX::setsid(); exit if fork; exec "sleep", "7003"'
        nohup sleep 7004 &
    """
    await srun(cluster, leave)
    assert (await cluster.head.read("pgrep -fc '^sleep 700' || true")).stdout.strip() == "0"
    left = "ls -d /run/gpuaas-slurm/jobs/[0-9]* /sys/fs/cgroup/*/slurm_job_* /run/gpuaas-slurm/cpu/slurm_job_*"
    assert (await cluster.head.read(f"{left} 2>/dev/null || true")).stdout == ""


async def test_a_job_sees_the_gpus_that_it_was_given(cluster: Cluster) -> None:
    look = 'for gpu in /dev/nvidia?; do if : <"$gpu"; then echo "opened $gpu"; fi; done 2>/dev/null'
    assert "opened" not in await srun(cluster, look)
    # What a user says of it is not asked.
    assert "opened" not in await srun(cluster, look, "--mem=100M --export=ALL,SLURM_JOB_GPUS=0,CUDA_VISIBLE_DEVICES=0")
    assert (await srun(cluster, look, "--mem=100M --gres=gpu:1")).count("opened") == 1
    assert (await srun(cluster, look, "--mem=100M --gres=gpu:2")).count("opened") == 2


async def test_there_is_no_way_out_of_the_job(cluster: Cluster) -> None:
    """Each way prints `out` where it leads out."""
    host_user = "install -d -o gpuaas -m 0700 /run/user/10000 && mkdir -p /run/user/10000/systemd"
    assert (await cluster.head.read(host_user)).ok
    attempts = """
        exec 2>/dev/null
        sudo -n true && echo out by sudo
        XDG_RUNTIME_DIR=/run/user/10000 systemd-run --user true && echo out by systemd-run
        [ -e /run/user/10000 ] && echo out: the manager of log-ins is in reach
        systemd-run true && echo out by the system manager
        loginctl enable-linger && echo out by lingering
        [ -e /var/lib/systemd/linger/gpuaas ] && echo out: lingers
        group=/sys/fs/cgroup/memory/slurm_job_$SLURM_JOB_ID
        echo -1 >$group/memory.limit_in_bytes && echo out by its own limit
        echo $$ >/sys/fs/cgroup/memory/cgroup.procs && echo out of its group
        for gpu in /dev/nvidia?; do unshare -Urm umount $gpu && echo out by umount; done
        unshare -Urm umount /tmp && echo out by umount of /tmp
        mknod /tmp/gpu c 195 0 && echo out by mknod
        ls /run/gpuaas-slurm/jobs && echo out: others are seen
        echo >>/run/gpuaas-slurm/jobs/$SLURM_JOB_ID/gpus && echo out by its list of GPUs
        echo tried
    """
    assert (await srun(cluster, attempts)).split("\n") == ["tried", ""]
    for tool in ("cron", "at"):
        assert (await cluster.head.read(f"cat /etc/{tool}.allow")).stdout == "root\n"
    assert (await cluster.head.read("rm -r /run/user/10000")).ok


async def test_processors_are_limited_to_the_given_ones(cluster: Cluster) -> None:
    spin = (
        "for i in 1 2 3; do timeout 1 bash -c 'while :; do :; done' & done; wait; "
        "cat /run/gpuaas-slurm/cpu/slurm_job_$SLURM_JOB_ID/cpu.cfs_quota_us; times | tail -n 1"
    )
    said = (await srun(cluster, spin, "--mem=100M --cpus-per-task=1")).split()
    assert said[0] == "100000", said


async def test_an_impossible_job_is_refused_with_words(cluster: Cluster) -> None:
    said = await srun(cluster, "true", "--mem=900G")
    assert "Memory specification can not be satisfied" in said
    assert "More processors requested than permitted" in await srun(cluster, "true", "--cpus-per-task=99")


async def test_a_foreign_plug_in_starts_no_job_and_no_slurmd(cluster: Cluster) -> None:
    name, plugin = cluster.head.hostname, f"{DIRECTORY}/limits.so"
    assert (await cluster.head.read(f"cp -a {plugin} /root/kept.so && printf x >>{plugin}")).ok
    submit = f"cd /; runuser -u gpuaas -- sbatch --parsable --mem=100M --output={OUTPUT}.never --wrap=hostname"
    job = (await cluster.head.read(submit)).stdout.strip()
    drained = f"timeout 10 scontrol --oneliner show node {name} | grep -E 'State=[^ ]*DRAIN'"
    await wait_for(cluster.head, "the node to be refused", drained)
    assert not (await cluster.head.read(f"ls {OUTPUT}.never")).ok
    assert not await limit_probe.read_whole(cluster.head)
    assert not (await cluster.head.read("systemctl restart slurmd.service")).ok
    assert (await cluster.head.read(f"mv /root/kept.so {plugin} && systemctl restart slurmd.service")).ok
    assert await limit_probe.read_whole(cluster.head)
    assert await limit_probe.read_configured(cluster.head) is None
    assert (await cluster.head.read(f"scancel {job}; scontrol update nodename={name} state=RESUME")).ok
    await cluster.wait_until_idle()


async def test_a_phantom_job_is_found_and_ended_by_recover(cluster: Cluster) -> None:
    """As a restart of the machine leaves it: slurmctld calls it running, and nobody runs it."""
    head = cluster.head
    healthy = await cluster.submit(head, "sleep 1001")
    old = "squeue --noheader --states=RUNNING --format=%M | grep -E '0:(1[6-9]|[2-5].)'"
    await wait_for(head, "the job to be older than one that starts", old)
    assert await phantoms.read_phantoms(head, head) == ([], [int(healthy)])
    lost = await head.read(f"""
        systemctl stop slurmd.service
        pkill -KILL -f 'slurmstepd: .{healthy}[.]'
        kill -KILL $(cat /sys/fs/cgroup/pids/slurm_job_{healthy}/cgroup.procs)
        cd /run/gpuaas-slurm/jobs && umount {healthy}/tmp {healthy}/shm {healthy}/user && rm -r {healthy}
    """)
    assert lost.ok, lost.stderr
    assert await cluster.state_of(healthy) == "RUNNING"
    assert await phantoms.read_phantoms(head, head) == ([int(healthy)], [])
    assert (await head.read("systemctl start slurmd.service")).ok
    await cluster.run("recover", head)
    assert await cluster.state_of(healthy) != "RUNNING"
    assert (await nodes.read_node(head, head.hostname)).usable
    await cluster.cancel(healthy)


async def test_what_users_expect_works(cluster: Cluster) -> None:
    script = r"""
        cd /; u() { runuser -u gpuaas -- timeout 40 "$@" </dev/null; }
        echo "salloc=$(u salloc -Q --mem=100M srun --overlap hostname)"
        pty='srun --quiet --pty --mem=100M tty'
        echo "pty=$(u script -qec "$pty" /dev/null | tr -d '\r')"
        echo "locale=$(u srun --export=NONE --mem=100M /usr/bin/printenv LANG)"
        echo "rank=$(u srun --mem=100M printenv PMIX_RANK)"
        echo "limits=$(ulimit -S -n 100; u srun --mem=100M bash -c 'ulimit -n')"
        out=/home/gpuaas/expect
        array=$(u sbatch --parsable --mem=50M --array=1-3 --output=$out-%a --wrap='echo $SLURM_ARRAY_TASK_ID')
        after=$(u sbatch --parsable --mem=50M --dependency=afterok:$array --output=$out-after --wrap="cat $out-?")
        signal=$(u sbatch --parsable --mem=50M --signal=B:USR1 --output=$out-signal \
            --wrap='trap "echo got; exit 0" USR1; echo ready; sleep 90 & wait')
        until grep -qs ready $out-signal; do sleep 0.1; done
        u scancel --batch --signal=USR1 $signal
        again=$(u sbatch --parsable --mem=50M --requeue --open-mode=append --output=$out-again \
            --wrap='echo run; sleep 90')
        until squeue -h -j $again -t RUNNING | grep -q . && grep -qs run $out-again; do sleep 0.1; done
        u scontrol requeue $again
        until scontrol show job $again | grep -q 'JobState=PENDING'; do sleep 0.1; done
        echo "again=$(scontrol show job $again | grep -o 'Restarts=[0-9]*')"
        # It would wait two minutes for its second run.
        u scancel $again
        end=$((SECONDS + 60))
        until [ -z "$(squeue -h)" ] || [ $SECONDS -gt $end ]; do sleep 0.2; done
        echo "after=$(paste -sd, $out-after)"
        echo "signal=$(tail -n 1 $out-signal)"
    """
    result = await cluster.head.read(script, timeout=150)
    assert result.ok, result.stderr
    said = result.values
    assert said["salloc"] == cluster.head.hostname, result.stderr
    assert "/dev/pts/" in said["pty"], said
    assert (said["locale"], said["rank"], said["after"]) == ("C.UTF-8", "0", "1,2,3"), said
    assert (said["signal"], said["again"]) == ("got", "Restarts=1"), said
    assert int(said["limits"]) > 100
