# Remove the packages that the app installed, and what they own. After dpkg.sh.
#
# leaving, staying: names of lists of the bundle; with none that stays, all go. owned: a file with the paths of the
# packages. mend_before_purge: what the app does just before; system_path PATH: whether that is no package's.
#
# dpkg, not apt: it purges the named packages or refuses, and never takes along what somebody else installed
# on top. What the packages own is written down before they go: only that is looked for afterwards, so nothing
# that a person made meanwhile is ever taken for ours, also where the install was interrupted.
leaving_packages() {
    if [ -n "$staying" ]; then (cd "$state/bundle" && sort -u $leaving | comm -23 - <(sort -u $staying))
    else cat "$state/bundle/names"; fi
}
# mend_postrm PACKAGE PATTERN: what fits does nothing.
mend_postrm() {
    local script=/var/lib/dpkg/info/$1.postrm
    grep -qs "$2" "$script" || return 0
    sed "s#$2#:#" "$script" >"$state/postrm"
    chmod 0755 "$state/postrm"
    mv "$state/postrm" "$script"
}
# An install that was killed leaves its repository behind, and files that dpkg does not yet, or no longer, list.
half_unpacked() {
    [ -d "$state/repository" ] || return 0
    for deb in "$state"/repository/*.deb; do
        package=${deb##*/}
        if leaving_packages | grep -Fxq "${package%%_*}"; then dpkg-deb --fsys-tarfile "$deb" | tar -t; fi
    done | sed -E 's#^[.]##; s#/$##; p; s#$#.dpkg-new#p; s#new$#tmp#'
}
purge_packages() {
    local added
    allow_daemon_starts
    added=$(comm -13 "$baseline"/package_names <(dpkg-query -W -f '${binary:Package}\n' | sort) |
        while read -r package; do
            if leaving_packages | grep -Fxq "${package%%:*}"; then echo "$package"; fi
        done)
    # By their real place: /lib is a link to /usr/lib, and the baseline knows what lies there, not the link.
    {
        cat "$owned" 2>/dev/null || true
        if [ -n "$added" ]; then dpkg -L $added 2>/dev/null || true; fi
        half_unpacked
    } | sed -En 's#^/(bin|sbin|lib|lib32|lib64|libx32)/#/usr/\1/#; \#^/(etc|usr|opt|srv|var)/#p' | sort -u |
        comm -23 - "$baseline"/paths >"$owned".new
    mv "$owned".new "$owned"
    if [ -n "$added" ]; then
        rm -f "$state/packages.done"
        forbid_daemon_starts
        trap 'allow_daemon_starts' EXIT
        mend_before_purge
        run_dpkg --force-remove-reinstreq --purge $added
        allow_daemon_starts
    fi
    # Also where an earlier run was killed with the last package gone.
    finish_triggers
    echo "packages=$(wc -w <<<"$added")"
}
remove_package_paths() {
    local removed path
    removed=0
    if [ -e "$owned" ]; then
        while read -r path; do
            if { [ -e "$path" ] || [ -L "$path" ]; } && ! system_path "$path"; then
                # A link to a directory is never ours alone.
                if [ -L "$path" ] && [ -d "$path" ]; then continue; fi
                if [ -d "$path" ]; then
                    # Python writes there what no package lists, and no script removes where the package was not configured.
                    rm -rf "$path/__pycache__"
                    rmdir "$path" 2>/dev/null || true
                else
                    rm -f "$path"
                fi
                removed=$((removed + 1))
            fi
        done < <(sort -r "$owned")
    fi
    echo "paths=$removed"
}
