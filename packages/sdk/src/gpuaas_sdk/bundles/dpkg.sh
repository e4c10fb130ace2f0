# dpkg on a machine, from whatever state a kill has left it in. Install and removal share these functions.
#
# state: the directory of the app's record; baseline: the snapshot of the machine in it; mark: the app's name in a
# policy-rc.d; policy: that file.

# A policy-rc.d that was there before is put aside and comes back, also when the step was killed between.
forbid_daemon_starts() {
    if [ -e "$policy" ] && ! grep -q "$mark" "$policy"; then mv "$policy" "$state/policy-rc.d.saved"; fi
    # Whole or not at all: what a kill left of ours, without its mark, would be taken for somebody else's.
    printf '#!/bin/sh\n# %s: nothing starts before it is configured\nexit 101\n' "$mark" >"$policy.gpuaas-new"
    chmod 0755 "$policy.gpuaas-new"
    mv "$policy.gpuaas-new" "$policy"
}
allow_daemon_starts() {
    rm -f "$policy.gpuaas-new"
    if [ -e "$policy" ] && grep -q "$mark" "$policy"; then rm -f "$policy"; fi
    if [ -e "$state/policy-rc.d.saved" ]; then mv "$state/policy-rc.d.saved" "$policy"; fi
}

# run_dpkg OPTION…: wait for another dpkg or apt, and say the end of what dpkg said where it fails.
# take_in_journal: a dpkg that was killed left what it did beside its database; any that writes takes that in.
# finish_triggers: dpkg runs the triggers last, many of them those of packages that were there before us (libc-bin
#   rebuilds its cache). One that is killed in such a script leaves that package half configured. What was pending or
#   broken before us is somebody else's; so is what broke since then for another reason, and so does not heal: that is
#   said, and holds nothing up.
export DEBIAN_FRONTEND=noninteractive
run_dpkg() {
    local end=$((SECONDS + 120))
    until dpkg --force-unsafe-io "$@" </dev/null >"$state/dpkg.log" 2>&1; do
        if ! grep -q 'frontend lock\|database lock' "$state/dpkg.log" || [ "$SECONDS" -ge "$end" ]; then
            tail -n 30 "$state/dpkg.log" >&2
            return 1
        fi
        sleep 0.5
    done
}
take_in_journal() {
    if [ -n "$(ls /var/lib/dpkg/updates)" ] || [ -s /var/lib/dpkg/triggers/Unincorp ]; then
        run_dpkg --set-selections
    fi
}
finish_triggers() {
    local pending half ours
    take_in_journal
    half=$(dpkg-query -W -f '${binary:Package}\t${Version}\t${db:Status-Status}\n' |
        sed -n 's/\thalf-configured$/\tinstalled/p' | sort | comm -12 - "$baseline"/packages | cut -f1)
    if [ -n "$half" ] && ! run_dpkg --configure $half; then
        echo "left as they are, since they are not ours and cannot be configured:" $half >&2
    fi
    pending=$(dpkg-query -W -f '${db:Status-Status} ${binary:Package}\n' |
        sed -n 's/^triggers-pending //p' | sort |
        comm -23 - <(sed -n 's/\t.*\ttriggers-pending$//p' "$baseline"/packages))
    ours=$(comm -13 "$baseline"/package_names - <<<"$pending")
    if [ -n "$ours" ]; then run_dpkg --triggers-only $ours; fi
    pending=$(comm -12 "$baseline"/package_names - <<<"$pending")
    if [ -n "$pending" ] && ! run_dpkg --triggers-only $pending; then
        echo "left as they are, since they are not ours and their triggers fail:" $pending >&2
    fi
}
