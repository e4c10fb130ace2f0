/* A SPANK plug-in that puts each task of a job into the job's control groups and into a view of the machine with only
 * the job's GPUs and a /tmp and /dev/shm of its own.
 *
 * Slurm's own control groups do not work for ordinary users in an unprivileged container: only the host's root may move
 * a process of another user. A task may move itself, as long as it is still root: that is what happens here. The Prolog
 * has made the groups and the list of GPUs; the amounts come from the job's credential, which slurmctld has signed. The
 * environment, which the user writes, is never read. Whatever fails here ends the task before the user's program runs.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

SPANK_PLUGIN(gpuaas_limits, 1);

#define JOBS "/run/gpuaas-slurm/jobs"
#define PROCESSES_PER_CPU 1024
#define PATH_SIZE 512

struct job {
	uint32_t id;
	uint64_t memory; /* bytes */
	unsigned cpus;
	char directory[PATH_SIZE];
};
static struct job watched;
static int watching;
static long long killed_before;
static pthread_mutex_t telling = PTHREAD_MUTEX_INITIALIZER;
static int told;

static int fail(const char *what, const char *name)
{
	slurm_error("cannot limit this job: %s %s: %s", what, name, strerror(errno));
	return -1;
}

static int path_of(char *path, const struct job *job, const char *format, ...)
{
	char rest[PATH_SIZE];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(rest, sizeof(rest), format, arguments);
	va_end(arguments);
	if ((size_t) snprintf(path, PATH_SIZE, "%s/%s", job->directory, rest) < PATH_SIZE)
		return 0;
	errno = ENAMETOOLONG;
	return -1;
}

static int put(const struct job *job, const char *file, const char *format, ...)
{
	char path[PATH_SIZE], value[64];
	va_list arguments;
	int length, fd, done;

	va_start(arguments, format);
	length = vsnprintf(value, sizeof(value), format, arguments);
	va_end(arguments);
	if (path_of(path, job, "%s", file) < 0 || (fd = open(path, O_WRONLY | O_CLOEXEC)) < 0)
		return -1;
	done = write(fd, value, length) == length ? 0 : -1;
	close(fd);
	return done;
}

/* The number that follows `key` in a file of the job's directory, or the first one where there is no key; -1: none. */
static long long number(const struct job *job, const char *file, const char *key)
{
	char path[PATH_SIZE], line[256];
	long long found = -1;
	FILE *opened;

	if (path_of(path, job, "%s", file) < 0 || !(opened = fopen(path, "re")))
		return -1;
	while (found < 0 && fgets(line, sizeof(line), opened)) {
		size_t length = key ? strlen(key) : 0;
		char *end = line;

		if (key && (strncmp(line, key, length) || line[length] != ' '))
			continue;
		found = strtoll(line + length, &end, 10);
		if (end == line + length)
			found = -1;
	}
	fclose(opened);
	return found;
}

static int present(const struct job *job, const char *file)
{
	char path[PATH_SIZE];

	return path_of(path, job, "%s", file) == 0 && access(path, F_OK) == 0;
}

/* "0-3,8": 5. Slurm's list of the cores of this node that the job was given. */
static unsigned count_cores(const char *list)
{
	unsigned count = 0;

	while (list && *list) {
		char *end;
		unsigned long first = strtoul(list, &end, 10), last = first;

		if (end == list)
			return 0;
		if (*end == '-')
			last = strtoul(end + 1, &end, 10);
		if (last < first || (*end && *end != ','))
			return 0;
		count += last - first + 1;
		list = *end ? end + 1 : end;
	}
	return count;
}

static int read_job(spank_t spank, struct job *job)
{
	uint64_t memory = 0;
	char *cores = NULL;
	long long threads;

	if (spank_get_item(spank, S_JOB_ID, &job->id) != ESPANK_SUCCESS)
		return fail("its number is", "unknown");
	snprintf(job->directory, sizeof(job->directory), JOBS "/%u", job->id);
	if (!present(job, "gpus")) {
		errno = ENOENT;
		return fail("its Prolog has made no", job->directory);
	}
	if (spank_get_item(spank, S_JOB_ALLOC_MEM, &memory) != ESPANK_SUCCESS || !memory || memory >= NO_VAL) {
		errno = EINVAL;
		return fail("its credential has no amount of", "memory");
	}
	threads = number(job, "threads", NULL);
	if (spank_get_item(spank, S_JOB_ALLOC_CORES, &cores) == ESPANK_SUCCESS)
		job->cpus = count_cores(cores) * (threads > 0 ? threads : 1);
	if (!job->cpus) {
		errno = EINVAL;
		return fail("its credential has no list of", "cores");
	}
	job->memory = memory << 20;
	return 0;
}

/* A quota of the machine that is smaller than the job's is the one that counts; the kernel refuses to exceed it. */
static int set_cpu_quota(const struct job *job)
{
	long long period = number(job, "cpu/cpu.cfs_period_us", NULL);

	if (present(job, "cpu/cpu.max")) {
		return put(job, "cpu/cpu.max", "%lld 100000", 100000LL * job->cpus);
	}
	if (put(job, "cpu/cpu.cfs_quota_us", "%lld", period * job->cpus) == 0 || errno == EINVAL)
		return 0;
	return -1;
}

/* `memory`, `pids` and `cpu` in the job's directory are links to its groups; which of them there are is the Prolog's
 * decision. */
static int set_limits(const struct job *job)
{
	unsigned long long memory = job->memory;

	if (present(job, "memory/memory.max")) {
		if (put(job, "memory/memory.max", "%llu", memory) < 0)
			return fail("memory.max of", job->directory);
		/* Missing where the machine has no swap. */
		(void) put(job, "memory/memory.swap.max", "0");
		(void) put(job, "memory/memory.oom.group", "1");
	} else if (present(job, "memory")) {
		/* The sum with swap may never be less than memory alone: in this order, and the other one where it grew. */
		if (put(job, "memory/memory.limit_in_bytes", "%llu", memory) < 0)
			return fail("memory.limit_in_bytes of", job->directory);
		if (present(job, "memory/memory.memsw.limit_in_bytes") &&
		    put(job, "memory/memory.memsw.limit_in_bytes", "%llu", memory) < 0)
			return fail("memory.memsw.limit_in_bytes of", job->directory);
	}
	if (present(job, "pids") && put(job, "pids/pids.max", "%u", PROCESSES_PER_CPU * (job->cpus + 1)) < 0)
		return fail("pids.max of", job->directory);
	if (present(job, "cpu") && set_cpu_quota(job) < 0)
		return fail("the CPU quota of", job->directory);
	return 0;
}

static int join_groups(const struct job *job)
{
	static const char *const groups[] = { "memory", "pids", "cpu" };
	char file[PATH_SIZE];

	for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++) {
		if (!present(job, groups[i]))
			continue;
		snprintf(file, sizeof(file), "%s/cgroup.procs", groups[i]);
		if (put(job, file, "0") < 0)
			return fail("joining its group of", groups[i]);
	}
	return 0;
}

static int is_given(const char *list, const char *gpu)
{
	size_t length = strlen(gpu);

	for (const char *at = list; (at = strstr(at, gpu)); at += length)
		if ((at == list || at[-1] == ',') && (!at[length] || at[length] == ',' || at[length] == '\n'))
			return 1;
	return 0;
}

static int hide_gpus(const struct job *job)
{
	char given[1024] = "", closed[PATH_SIZE], path[PATH_SIZE];
	struct dirent *entry;
	DIR *devices;
	FILE *list;
	int done = 0;

	if (path_of(path, job, "gpus") < 0 || path_of(closed, job, "closed") < 0 || !(list = fopen(path, "re")))
		return fail("reading its", "GPUs");
	if (!fgets(given, sizeof(given), list))
		given[0] = 0;
	fclose(list);
	if (!(devices = opendir("/dev")))
		return fail("reading", "/dev");
	while (!done && (entry = readdir(devices))) {
		const char *digits = entry->d_name + strlen("nvidia");

		if (strncmp(entry->d_name, "nvidia", strlen("nvidia")) || !*digits ||
		    digits[strspn(digits, "0123456789")] || is_given(given, digits))
			continue;
		snprintf(path, sizeof(path), "/dev/%s", entry->d_name);
		if (mount(closed, path, NULL, MS_BIND, NULL) < 0)
			done = fail("hiding", path);
	}
	closedir(devices);
	return done;
}

static int place(const struct job *job, const char *source, const char *target, unsigned long long size)
{
	char path[PATH_SIZE], options[64];

	snprintf(options, sizeof(options), "mode=1777,size=%llu", size);
	if (path_of(path, job, "%s", source) < 0 || mount(path, target, NULL, MS_BIND, NULL) < 0)
		return fail("a private", target);
	/* Half of the job's memory each: what is full says so, before the whole job has to be ended. */
	if (size && mount(NULL, target, NULL, MS_REMOUNT | MS_NOSUID | MS_NODEV, options) < 0)
		return fail("the size of a private", target);
	return 0;
}

static int make_private(const struct job *job)
{
	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) < 0)
		return fail("a view of", "the machine");
	if (hide_gpus(job) < 0 || place(job, "tmp", "/tmp", job->memory / 2) < 0 ||
	    place(job, "shm", "/dev/shm", job->memory / 2) < 0)
		return -1;
	/* A manager of the user's log-ins would start processes outside of the job. */
	return access("/run/user", F_OK) == 0 ? place(job, "user", "/run/user", 0) : 0;
}

int slurm_spank_task_init_privileged(spank_t spank, int ac, char **av)
{
	struct job job = { 0 };

	(void) ac;
	(void) av;
	if (read_job(spank, &job) < 0 || set_limits(&job) < 0 || make_private(&job) < 0 || join_groups(&job) < 0)
		return -1;
	/* One that was submitted without an environment of its own. */
	(void) spank_setenv(spank, "LANG", "C.UTF-8", 0);
	/* No program gives a job more rights than its user: sudo, at and crontab would lead out of its groups. */
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return fail("closing", "set-uid programs");
	return 0;
}

/* In slurmstepd: the kernel has ended one process of a job that is over its limit. End the others, and say why. */

static void end_processes(const struct job *job)
{
	char path[PATH_SIZE];
	int pid, left = 1;

	(void) put(job, "pids/pids.max", "0");
	if (path_of(path, job, "memory/cgroup.procs") < 0)
		return;
	for (int round = 0; left && round < 100; round++) {
		FILE *list = fopen(path, "re");

		left = 0;
		while (list && fscanf(list, "%d", &pid) == 1)
			left += kill(pid, SIGKILL) == 0;
		if (list)
			fclose(list);
		if (left)
			usleep(10000);
	}
}

/* Shown by sacct. Not by a process: slurmstepd would take its end for that of a task. */
static void note_in_accounting(const struct job *job, char *words)
{
	job_desc_msg_t update;

	slurm_init_job_desc_msg(&update);
	update.job_id = job->id;
	update.admin_comment = words;
	(void) slurm_update_job(&update);
}

static long long killed(const struct job *job)
{
	if (present(job, "memory/memory.events"))
		return number(job, "memory/memory.events", "oom_kill");
	return number(job, "memory/memory.oom_control", "oom_kill");
}

/* Called by the watch and at the end of each task, since the task may be what the kernel has ended. The words first:
 * when the processes are gone, so may be slurmstepd. */
static void end_if_over(const struct job *job)
{
	long long peak;
	char words[200];

	pthread_mutex_lock(&telling);
	if (!told && killed(job) > killed_before) {
		told = 1;
		if ((peak = number(job, "memory/memory.max_usage_in_bytes", NULL)) < 0)
			peak = number(job, "memory/memory.peak", NULL);
		snprintf(words, sizeof(words),
			 "over its memory limit: limit %llu MiB, use %lld MiB with /tmp and /dev/shm. All of it was ended",
			 (unsigned long long) job->memory >> 20, peak < 0 ? -1 : (peak + (1 << 20) - 1) >> 20);
		slurm_error("job %u is %s", job->id, words);
		note_in_accounting(job, words);
		end_processes(job);
	}
	pthread_mutex_unlock(&telling);
}

/* The kernel's notice where there is one (v1: an eventfd; v2: POLLPRI of memory.events), and a look each second. */
static int open_notice(const struct job *job, short *events)
{
	char path[PATH_SIZE];
	int file, notice;

	*events = POLLPRI;
	if (path_of(path, job, "memory/memory.events") == 0 && (file = open(path, O_RDONLY | O_CLOEXEC)) >= 0)
		return file;
	*events = POLLIN;
	if (path_of(path, job, "memory/memory.oom_control") < 0 || (file = open(path, O_RDONLY | O_CLOEXEC)) < 0)
		return -1;
	if ((notice = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) >= 0 &&
	    put(job, "memory/cgroup.event_control", "%d %d", notice, file) < 0) {
		close(notice);
		notice = -1;
	}
	close(file);
	return notice;
}

static void *watch(void *unused)
{
	struct pollfd notice = { .fd = -1 };
	uint64_t count;

	(void) unused;
	notice.fd = open_notice(&watched, &notice.events);
	while (!told && present(&watched, "memory")) {
		end_if_over(&watched);
		if (poll(&notice, 1, 1000) > 0 && notice.events == POLLIN)
			(void) !read(notice.fd, &count, sizeof(count));
		else if (notice.revents)
			usleep(10000);
	}
	if (notice.fd >= 0)
		close(notice.fd);
	return NULL;
}

int slurm_spank_task_post_fork(spank_t spank, int ac, char **av)
{
	pthread_attr_t detached;
	pthread_t thread;

	(void) ac;
	(void) av;
	if (watching || read_job(spank, &watched) < 0 || !present(&watched, "memory"))
		return 0;
	if ((killed_before = killed(&watched)) < 0)
		killed_before = 0;
	pthread_attr_init(&detached);
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	watching = pthread_create(&thread, &detached, watch, NULL) == 0;
	pthread_attr_destroy(&detached);
	return 0;
}

int slurm_spank_task_exit(spank_t spank, int ac, char **av)
{
	(void) spank;
	(void) ac;
	(void) av;
	if (!watching)
		return 0;
	end_if_over(&watched);
	/* srun stops reading when it hears that a task was killed: let the words pass before that. */
	if (told)
		usleep(200000);
	return 0;
}
