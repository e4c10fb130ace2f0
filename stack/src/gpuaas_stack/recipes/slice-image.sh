#!/bin/sh
# Turns a fresh Debian root file system into a slice. mmdebstrap runs it on the host with the root as $1.
# Everything here must be true of every slice; what differs from slice to slice is the agent's work.
set -eu
root=$1

# One account for people and controllers. The uid is the first of the platform's own range, so it is the
# same on every machine.
chroot "$root" groupadd --gid 10000 gpuaas
chroot "$root" useradd --uid 10000 --gid 10000 --create-home --shell /bin/bash --comment GPUaaS gpuaas
cat >"$root/etc/sudoers.d/gpuaas" <<'END'
gpuaas ALL=(ALL) NOPASSWD: ALL
END
chmod 0440 "$root/etc/sudoers.d/gpuaas"

# SSH trusts certificates and nothing else. Host keys in an image would be shared by every slice: the agent
# makes one per slice, and sshd stays off until key and certificate are both there.
rm -f "$root"/etc/ssh/ssh_host_*
mkdir -p "$root/etc/ssh/gpuaas_principals" "$root/etc/ssh/sshd_config.d"
cat >"$root/etc/ssh/sshd_config.d/10-gpuaas.conf" <<'END'
HostKey /etc/ssh/ssh_host_ed25519_key
HostCertificate /etc/ssh/ssh_host_ed25519_key-cert.pub
TrustedUserCAKeys /etc/ssh/gpuaas_user_ca.pub
AuthorizedPrincipalsFile /etc/ssh/gpuaas_principals/%u
AuthorizedKeysFile none
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
UseDNS no
PrintLastLog no
MaxSessions 64
MaxStartups 64:30:128
END
mkdir -p "$root/etc/systemd/system/ssh.service.d"
cat >"$root/etc/systemd/system/ssh.service.d/10-gpuaas.conf" <<'END'
[Unit]
ConditionPathExists=/etc/ssh/ssh_host_ed25519_key
ConditionPathExists=/etc/ssh/ssh_host_ed25519_key-cert.pub
ConditionPathExists=/etc/ssh/gpuaas_user_ca.pub
END

# Address and name service come from the project's bridge. The client identifier is the MAC address because
# that is what LXD pins an address to.
cat >"$root/etc/systemd/network/10-eth0.network" <<'END'
[Match]
Name=eth0

[Network]
DHCP=ipv4
LinkLocalAddressing=no
IPv6AcceptRA=no
LLMNR=no
MulticastDNS=no

[DHCPv4]
ClientIdentifier=mac
UseDomains=yes
UseHostname=no
UseTimezone=no
END
mkdir -p "$root/etc/systemd/resolved.conf.d"
cat >"$root/etc/systemd/resolved.conf.d/10-gpuaas.conf" <<'END'
[Resolve]
FallbackDNS=
LLMNR=no
MulticastDNS=no
DNSSEC=no
DNSStubListener=no
END
# Programs ask the bridge's name server themselves (short names of machines need its search domain). The
# link also makes sure that the build host's resolv.conf is not in the image.
rm -f "$root/etc/resolv.conf"
ln -s ../run/systemd/resolve/resolv.conf "$root/etc/resolv.conf"
printf '127.0.0.1 localhost\n' >"$root/etc/hosts"
printf 'slice\n' >"$root/etc/hostname"
chroot "$root" systemctl enable systemd-networkd.service systemd-resolved.service ssh.service

# What cannot work in a container, and what would try to reach the outside or work at odd times.
chroot "$root" systemctl mask \
    systemd-binfmt.service systemd-timesyncd.service \
    systemd-modules-load.service sys-kernel-debug.mount sys-kernel-tracing.mount \
    apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer fstrim.timer man-db.timer \
    e2scrub_all.timer e2scrub_reap.service motd-news.timer \
    console-getty.service getty@.service

# Slices have no way out, so there is nothing to fetch from: bundles bring their own source.
rm -rf "$root/etc/apt/sources.list" "$root"/etc/apt/sources.list.d/* "$root/etc/apt/apt.conf.d/99mmdebstrap"
cat >"$root/etc/apt/apt.conf.d/90gpuaas" <<'END'
APT::Install-Recommends "false";
Acquire::Languages "none";
END
# A slice is thrown away whole, so dpkg need not flush every file; documents are left out of it.
cat >"$root/etc/dpkg/dpkg.cfg.d/90gpuaas" <<'END'
force-unsafe-io
path-exclude=/usr/share/doc/*
path-include=/usr/share/doc/*/copyright
path-exclude=/usr/share/man/*
path-exclude=/usr/share/locale/*
END
find "$root/usr/share/doc" -type f ! -name copyright -delete
find "$root/usr/share/doc" -type l -delete
rm -rf "$root"/usr/share/man/* "$root"/usr/share/locale/*
rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/* "$root"/var/log/* "$root"/tmp/*
mkdir -p "$root/var/cache/apt/archives/partial" "$root/var/lib/apt/lists/partial" "$root/var/log/journal"
chmod 0755 "$root/var/log/journal"

# Empty, not absent: each slice makes its own identity, and systemd does not ask first-boot questions.
: >"$root/etc/machine-id"
rm -f "$root/var/lib/dbus/machine-id"
