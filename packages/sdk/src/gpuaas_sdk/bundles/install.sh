# Install the packages of some groups from a bundle. After dpkg.sh.
#
# bundle: the file; roles, needs: arrays with its lists; prepare_for_packages: what the app does just before dpkg begins.
#
# The machine's own apt sources and lists are not touched: source, lists and cache are those of the bundle.
# Whether it has all that the machine lacks is asked of apt before the first change: a machine that the bundle was not
# made for is left as it was, and where nothing was installed before, without our record too.
# The lists come first in the bundle, so a run that finds nothing to do does not unpack it.
# apt says what is installed in which order, and dpkg does that at once: apt itself would look at every file once more,
# and run dpkg several times. While the packages are configured systemctl does not talk to systemd, which would
# otherwise read all its units anew for each daemon; that is done once, before the first of them starts.
#
# An install that was killed left packages in any state, and neither apt nor dpkg goes on from all of them. So apt is
# asked as if none of ours were there, and all that are not whole are unpacked again, and then configured. Packages
# that are not ours are neither repaired nor removed.
refuse_bundle() {
    rm -rf "$state/bundle.new" "$state/repository" "$state/apt"
    [ -d "$state/bundle" ] || rm -rf "$state"
    case $bundle in $copied/*) rm -rf $copied ;; esac
    exit "$does_not_fit"
}
make_ready_for_dpkg() {
    rm -f "$state/packages.done"
    trap 'allow_daemon_starts' EXIT
    forbid_daemon_starts
    prepare_for_packages
}
# our_packages PATTERN: the names of those whose wanted and actual state it fits.
our_packages() {
    dpkg-query -W -f '${db:Status-Want} ${db:Status-Status} ${binary:Package}\n' |
        sed -En "s/^($1) //p" | sort | comm -13 "$baseline"/package_names - | sed 's/:.*//' |
        sort -u | comm -12 - <(cat "$state/bundle.new/names" "$state/bundle/names" 2>/dev/null | sort -u)
}
# For apt: without ours, and without what is broken and not ours, which it would want to repair.
status_without_ours() {
    ours=$(our_packages '[^ ]+ [^ ]+') awk -v RS= -v ORS='\n\n' -F '\n' '
        BEGIN { split(ENVIRON["ours"], names, "\n"); for (i in names) ours["Package: " names[i]] }
        !($1 in ours) && /\nStatus: [a-z]+ ok (installed|config-files|triggers-[a-z]+)\n/' /var/lib/dpkg/status
}
# Lines of apt's simulation, "Inst NAME VERSION" and "Conf NAME VERSION", without the packages that are whole.
not_whole() {
    local word name version state_of architecture
    local -A whole=()
    while read -r name version state_of architecture; do
        case $state_of:$architecture in
            installed:$native | triggers-*:$native | installed:all | triggers-*:all) whole[$name]=$version ;;
        esac
    done < <(dpkg-query -W -f '${Package} ${Version} ${db:Status-Status} ${Architecture}\n')
    while read -r word name version; do
        [ "${whole[$name]-}" = "$version" ] || echo "$word $name"
    done
}
# As many of a kind as follow each other are one run.
install_as_resolved() {
    local word name packages=() doing=Inst
    while read -r word name; do
        [ -n "$word" ] || continue
        if [ "$word" != "$doing" ]; then
            run_batch "$doing" "${packages[@]}"
            packages=() doing=$word
        fi
        packages+=("$name")
    done
    run_batch "$doing" "${packages[@]}"
}
run_batch() {
    local doing=$1 name files=()
    shift
    [ $# -gt 0 ] || return 0
    if [ "$doing" = Conf ]; then
        SYSTEMD_OFFLINE=1 run_dpkg --force-confdef --force-confold --configure "$@"
        return
    fi
    for name in "$@"; do files+=("$state/repository/${name%%:*}"_*.deb); done
    SYSTEMD_OFFLINE=1 run_dpkg --force-confdef --force-confold --no-triggers --unpack "${files[@]}"
}
rm -rf "$state/bundle.new"
mkdir -p "$state/bundle.new"
tar -xf "$bundle" -C "$state/bundle.new" --no-same-owner --occurrence=1 names "${needs[@]}" "${roles[@]}" || {
    echo 'the artifact is not a bundle of Debian packages' >&2
    refuse_bundle
}
missing=$(cd "$state/bundle.new" && sort -u "${roles[@]}" | while read -r package; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || echo "$package"
done)
began_before="" broken=""
if [ -d "$state/bundle" ] && { [ -n "$missing" ] || [ ! -e "$state/packages.done" ]; }; then
    began_before=yes
    make_ready_for_dpkg
    finish_triggers
    # One that was on its way out, and is not needed, is left to the removal.
    broken=$(our_packages 'install (half-installed|unpacked|half-configured)')
fi
if [ -n "$missing$broken" ]; then
    rm -rf "$state/repository" "$state/apt"
    mkdir -p "$state/repository" "$state/apt/lists/partial" "$state/apt/archives/partial"
    tar -xf "$bundle" -C "$state/repository" --no-same-owner --occurrence=1 Packages
    echo "deb [trusted=yes] file:$state/repository ./" >"$state/apt/sources.list"
    status_without_ours >"$state/apt/status"
    options=(
        -o Dir::Etc::sourcelist="$state/apt/sources.list" -o Dir::Etc::sourceparts=-
        -o Dir::State::status="$state/apt/status"
        -o Dir::State::lists="$state/apt/lists" -o Dir::Cache::archives="$state/apt/archives"
        -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache=
        -o APT::Sandbox::User=root -o APT::Install-Recommends=false
    )
    apt-get -qq "${options[@]}" update
    if ! found=$(apt-get "${options[@]}" install --simulate --yes --no-remove $missing $broken 2>&1); then
        tail -n 20 <<<"$found" >&2
        case $found in *'held broken packages'* | *'Unable to locate'* | *'no installation candidate'* | \
            *'remove is disabled'*) refuse_bundle ;; esac
        exit 1
    fi
    native=$(dpkg --print-architecture)
    resolved=$(sed -En 's/^(Inst|Conf) ([^ ]+) (\[[^]]*\] )?\(([^ ]+) .*/\1 \2 \4/p' <<<"$found" | not_whole)
    files=$(sed -n 's/^Inst //p' <<<"$resolved" | sed 's/:.*//; s/.*/&_*.deb/')
    if [ -n "$files" ]; then
        tar -xf "$bundle" -C "$state/repository" --no-same-owner --wildcards --files-from=<(echo "$files")
    fi
fi
if [ -d "$state/bundle" ]; then mv -f "$state/bundle.new"/* "$state/bundle/" && rmdir "$state/bundle.new"
else mv "$state/bundle.new" "$state/bundle"; fi
if [ -n "$missing$broken" ]; then
    [ -n "$began_before" ] || make_ready_for_dpkg
    touch "$state/reload"
    install_as_resolved <<<"$resolved"
fi
if [ -n "$began_before" ]; then finish_triggers; fi
if [ ! -e "$state/packages.done" ]; then
    allow_daemon_starts
    rm -rf "$state/repository" "$state/apt"
    touch "$state/packages.done"
fi
echo "missing=$(echo $missing)"
echo "added=$(dpkg-query -W -f '${binary:Package}\n' | sort | comm -13 "$baseline"/package_names - | wc -l)"
