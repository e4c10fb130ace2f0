# One step as a transient systemd unit. The unit outlives this connection; its output and exit status are
# files, so that the same call (by its id) can come back for them over another connection.
unit=$1 call=$2 limit=$3 largest=$4 title=$5
directory=$steps/$call

# What the unit runs: the fence once more, now as a live unit that a successor can see, then the script.
# The script is opened and unlinked first: what it contains must not stay behind.
# shellcheck disable=SC2016
inside='
directory=$1 fences=$2 instance=$3 scope=$4 token=$5
exec 9>"$fences/$instance.lock" 3<"$directory/script"
rm -f "$directory/script"
flock 9
for file in "$fences/$instance" "$fences/$scope"; do
  highest=0
  if [[ -s $file ]]; then read -r highest <"$file"; fi
  if ((highest > token)); then echo "fenced $highest" >"$directory/result"; exit 0; fi
done
exec 9>&-
status=0
/bin/bash -euo pipefail /dev/fd/3 </dev/null || status=$?
echo "exited $status" >"$directory/result.new"
mv -f "$directory/result.new" "$directory/result"
exit "$status"
'

start() {
  systemd-run --quiet --wait --collect --unit="$unit" --description="$title" \
    --property=Type=exec --property=RuntimeMaxSec="$limit" --property=TimeoutStopSec=10 \
    --property="LogExtraFields=GPUAAS_CORRELATION_ID=$correlation" \
    --property="LogExtraFields=GPUAAS_OPERATION_ID=$operation" \
    --property=StandardOutput="truncate:$directory/out" --property=StandardError="truncate:$directory/err" \
    --setenv=HOME=/root --setenv=LC_ALL=C.UTF-8 \
    --setenv=GPUAAS_CORRELATION_ID="$correlation" --setenv=GPUAAS_OPERATION_ID="$operation" \
    /bin/bash -c "$inside" "$unit" "$directory" "$fences" "$instance" "$scope" "$token"
}

# A connection that was cut leaves its shell behind: the same call over the next connection waits for it.
# Whoever held the lock before may have removed its file: then it excludes nobody any more, and is taken anew.
while true; do
  exec 8>"$steps/$call.lock"
  flock 8
  if [[ /proc/self/fd/8 -ef $steps/$call.lock ]]; then break; fi
done
# Leave nothing behind where no unit was started, or its outcome was fetched: also where the fence refused the call.
trap 'if [[ ! -e $directory/meta ]]; then rm -rf "$directory" "$steps/$call.lock"; fi' EXIT
raise_fence
if [[ ! -e $directory/meta ]]; then
  mkdir -p "$directory"
  receive "$directory/script"
  settle_older_units
  printf '%s %s %s %s %s\n' "$unit" "$instance" "$scope" "$operation" "$token" >"$directory/meta"
fi
while [[ -e $directory/script ]]; do
  if start 2>"$directory/start" </dev/null || [[ ! -e $directory/script ]]; then break; fi
  # It did not start. A machine that boots has no bus yet.
  if grep -qi 'connect to bus' "$directory/start" && ((SECONDS < 60)); then
    sleep 0.2
    continue
  fi
  # A unit of that name may still be there: an earlier call that nobody waits for.
  if ! is_live "$unit"; then
    cat "$directory/start" >&2
    rm -rf "$directory"
    exit 70
  fi
  wait_for_unit "$unit" 86400
done
if [[ ! -s $directory/result ]]; then wait_for_unit "$unit" 86400; fi

outcome=terminated
if [[ -s $directory/result ]]; then read -r outcome <"$directory/result"; fi
if [[ $outcome == fenced* ]]; then
  rm -rf "$directory"
  printf 'gpuaas-%s\n' "$outcome"
  exit 0
fi
touch "$directory/out" "$directory/err"
size=$(stat -c %s "$directory/out")
printf 'gpuaas-step %s %s\n' "${outcome#exited }" "$((size < largest ? size : largest))"
tail -c "$largest" "$directory/out"
tail -c "$largest" "$directory/err"
rm -rf "$directory"
