"""A snapshot of a whole machine before an app came, as sorted lists: for apps that install packages, whose files nobody
can name beforehand. A record that has one in `baseline` is judged by it."""

# Ports come from /proc, because a minimal machine may have no ss. Enabled units are the links that enabling
# makes: systemctl list-unit-files takes 0.9 s for the same list. Logs are left out of the paths: they are
# exempt and listed by the receipt. /home, /root and /tmp belong to people.
LISTENING_PORTS = r"""
listening_ports() {
    local hex
    awk 'FNR > 1 && $4 == "0A" { sub(/.*:/, "", $2); print $2 }' /proc/net/tcp /proc/net/tcp6 2>/dev/null |
        while read -r hex; do echo $((16#$hex)); done | sort -un
}
"""
# snapshot DIRECTORY: whole and on disk, or not at all.
SNAPSHOT = (
    LISTENING_PORTS
    + r"""
snapshot() {
    rm -rf "$1.new"
    mkdir -p "$1.new"
    dpkg-query -W -f '${binary:Package}\t${Version}\t${db:Status-Status}\n' | sort >"$1.new/packages"
    cut -f1 "$1.new/packages" | sort -u >"$1.new/package_names"
    cut -d: -f1 /etc/passwd | sort >"$1.new/users"
    cut -d: -f1 /etc/group | sort >"$1.new/groups"
    listening_ports >"$1.new/ports"
    find /etc/systemd/system -type l -path '*.wants/*' -printf '%f\n' | sort -u >"$1.new/units"
    find /etc /usr /opt /srv /var -xdev \( -path /var/log -o -path /var/tmp -o -path "${1%/*}" \) -prune \
        -o -print | sort >"$1.new/paths"
    sync "$1.new"/* "$1.new"
    rm -rf "$1"
    mv "$1.new" "$1"
}
"""
)
