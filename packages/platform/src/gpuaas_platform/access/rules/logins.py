"""Names on machines: those of people, made from their e-mail address and safe in a shell, and those in certificates."""

import re

MOST_CHARACTERS = 24
_SYSTEM = (
    "root daemon bin sys sync games man lp mail news uucp proxy backup list irc gnats nobody nogroup "
    "operator admin adm sudo wheel staff users shadow utmp disk kmem tty dialout fax voice cdrom floppy "
    "tape audio video plugdev netdev crontab input render kvm docker lxd incus ssh sshd ftp postgres "
    "mysql messagebus polkitd tss uuidd ntp dnsmasq gpuaas test guest "
)
"""Users and groups that machines have, or may get from a package."""


def login_for(email: str, uid: int, *, taken: bool) -> str:
    """The part before the @; with the person's number where that is taken, or is none to be given to people."""
    local = email.partition("@")[0].lower()
    name = re.sub(r"[^a-z0-9]+", "-", local).strip("-")[:MOST_CHARACTERS].strip("-")
    if not name or not name[0].isalpha():
        name = f"u{name}"
    if taken or len(name) < 2 or name in _SYSTEM.split() or name.startswith(("systemd", "gpuaas")):
        return f"{name}-{uid}"
    return name


def certificate_principal(login: str, allocation_id: str) -> str:
    """Name the principal that a certificate must carry to log in to this machine as this user."""
    return f"{login}@{allocation_id}"
