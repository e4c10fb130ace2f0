# Makes the people of a machine exactly those that are wanted. Whatever was interrupted, the next run puts it right.
#
# $1  a directory with one file for each person that was ever made here; it holds the person's number
# $2  where sshd looks for the principals of a user     $3  where it looks for the keys of a user
# $4  the people that are wanted, a line each: `user LOGIN UID SUDO PRINCIPAL REMOTE`, `key LOGIN
#     LINE`; sshd listens (`ssh -R`) for the members of the group gpuaas-remote, those with REMOTE 1;
#     `temporary LOGIN`: the user is removed when it is not wanted any more; `account LOGIN UID`: known, not let in, and
#     temporary; `leaving LOGIN UID`: the door is closed and sessions end, other processes go on;
#     `group NAME GID LOGIN,LOGIN`: a project's
# A file LOGIN.temporary or NAME.group in $1 marks what is to be removed. Homes stay: they hold people's files, and
# nobody else is ever given their number.
set -eu
umask 022
people=$1 principals=$2 keys=$3 wanted=$4

fail() {
    echo "$1" >&2
    exit 1
}

# Whole at once: nobody reads half a file.
put() {
    cat >"$1.new"
    chmod "$2" "$1.new"
    mv -f "$1.new" "$1"
}

close_door() {
    rm -f "$principals/$1" "$keys/$1" "/etc/sudoers.d/gpuaas-$1"
    # What the person left to be started later must not start: cron and at refuse an account that has expired.
    usermod --expiredate 1 "$1" 2>/dev/null || :
}

# What came in through a door: an app's daemons start processes for people without one.
end_logins() {
    loginctl disable-linger "$1" >/dev/null 2>&1 || :
    loginctl terminate-user "$1" >/dev/null 2>&1 || :
    # What was started through sudo belongs to root, and to the login that it came from.
    for process in /proc/[0-9]*; do
        # Read by the shell itself: a process for each would take seconds where dozens of people have left. The file
        # has no end of line, which `read` calls a failure.
        found=
        { read -r found <"$process/loginuid" || :; } 2>/dev/null
        if [ "$found" = "$2" ]; then kill -KILL "${process#/proc/}" 2>/dev/null || :; fi
    done
}

end_sessions() {
    end_logins "$1" "$2"
    tries=0
    while pkill -KILL -u "$2" 2>/dev/null; do
        tries=$((tries + 1))
        [ "$tries" -lt 100 ] || fail "processes of $1 do not end"
        sleep 0.05
    done
}

# One whom this machine knows under another name keeps number and files. Each piece by itself: a run that was
# interrupted between two of them is continued by the next. The sessions under the old name have ended before.
take_over() {
    for file in $(grep -lx "$uid" "$people"/* 2>/dev/null); do
        old=${file##*/}
        case $old in "$login" | *.new | *.group) continue ;; esac
        if [ "$(getent passwd "$old" | cut -d: -f3)" = "$uid" ]; then
            usermod --login "$login" --home "/home/$login" "$old" || fail "cannot rename the user $old to $login"
        fi
        if [ "$(getent group "$old" | cut -d: -f3)" = "$uid" ]; then
            groupmod --new-name "$login" "$old" || fail "cannot rename the group $old to $login"
        fi
        for place in /home /var/mail /var/spool/cron/crontabs; do
            if [ -e "$place/$old" ] && [ ! -e "$place/$login" ] && [ "$(stat -c %u "$place/$old")" = "$uid" ]; then
                mv "$place/$old" "$place/$login"
            fi
        done
        for list in /etc/subuid /etc/subgid; do
            if [ -e "$list" ]; then sed -i "s/^$old:/$login:/" "$list"; fi
        done
        rm -f "$file"
    done
}

is_current() {
    [ "$(getent passwd "$login")" = "$login:x:$uid:$uid:GPUaaS:/home/$login:$1" ] &&
        [ -z "$(getent shadow "$login" | cut -d: -f8)" ]
}

# The account: $login with the number $uid and the shell $1.
make_account() {
    # Everybody is looked at each time that one comes or goes: nothing is started for those who are as they should be.
    if [ "$(cat "$people/$login" 2>/dev/null)" = "$uid" ] && is_current "$1"; then return 0; fi
    take_over
    if entry=$(getent passwd "$login"); then
        [ "$(echo "$entry" | cut -d: -f3)" = "$uid" ] || fail "this machine has a user $login of its own"
    else
        ! getent passwd "$uid" >/dev/null || fail "the number $uid belongs to $(getent passwd "$uid" | cut -d: -f1)"
        ! getent group "$login" >/dev/null || fail "this machine has a group $login of its own"
        groupadd --gid "$uid" "$login"
        useradd --uid "$uid" --gid "$uid" --create-home --shell "$1" --comment GPUaaS "$login" 2>/dev/null ||
            getent passwd "$login" >/dev/null || fail "cannot make the user $login"
    fi
    echo "$uid" | put "$people/$login" 644
    # Only what differs: each call rewrites the whole file, and there may be hundreds of people.
    if [ "$(getent passwd "$login" | cut -d: -f7)" != "$1" ]; then usermod --shell "$1" "$login"; fi
    if [ -n "$(getent shadow "$login" | cut -d: -f8)" ]; then usermod --expiredate '' "$login"; fi
}

keep_account() {
    login=$1 uid=$2
    rm -f "$principals/$login" "$keys/$login" "/etc/sudoers.d/gpuaas-$login"
    make_account /usr/sbin/nologin
    touch "$people/$login.temporary"
}

open_door() {
    login=$1 uid=$2 sudo=$3 principal=$4 remote=$5
    make_account /bin/bash
    if grep -q "^temporary $login\$" "$wanted"; then
        touch "$people/$login.temporary"
    else
        rm -f "$people/$login.temporary"
    fi
    if [ "$sudo" = 1 ]; then
        # sudo reads no file with a dot in its name: this one counts when it is whole.
        echo "$login ALL=(ALL) NOPASSWD: ALL" >"/etc/sudoers.d/.gpuaas-$login"
        chmod 0440 "/etc/sudoers.d/.gpuaas-$login"
        mv -f "/etc/sudoers.d/.gpuaas-$login" "/etc/sudoers.d/gpuaas-$login"
    elif [ -e "/etc/sudoers.d/gpuaas-$login" ]; then
        # A right to be root that ended: what began under it ends too.
        rm -f "/etc/sudoers.d/gpuaas-$login"
        end_logins "$login" "$uid"
    fi
    if [ "$remote" = 1 ]; then
        getent group gpuaas-remote >/dev/null || groupadd --system gpuaas-remote
        gpasswd --add "$login" gpuaas-remote >/dev/null
    elif getent group gpuaas-remote | cut -d: -f4 | tr , '\n' | grep -qx -- "$login"; then
        gpasswd --delete "$login" gpuaas-remote >/dev/null
    fi
    mine=$(sed -n "s/^key $login //p" "$wanted")
    if [ ! -e "$keys/$login" ] || [ "$(cat "$keys/$login")" != "$mine" ]; then
        echo "$mine" | put "$keys/$login" 644
    fi
    if [ "$(cat "$principals/$login" 2>/dev/null)" != "$principal" ]; then
        echo "$principal" | put "$principals/$login" 644
    fi
}

# Nothing of the person runs any more. The name goes, the number is never given to anybody else.
remove_account() {
    login=$1
    if getent passwd "$login" >/dev/null; then userdel "$login" || fail "cannot remove the user $login"; fi
    if getent group "$login" >/dev/null; then groupdel "$login" || fail "cannot remove the group $login"; fi
    # A home in which nothing was ever put goes too.
    if [ -d "/home/$login" ] && diff -rq /etc/skel "/home/$login" >/dev/null 2>&1; then rm -rf "/home/$login"; fi
    # That there was somebody is kept: a host that is handed back is cleaned of all that they left.
    rm -f "$people/$login.temporary"
}

keep_group() {
    name=$1 gid=$2 members=$3
    if entry=$(getent group "$name"); then
        [ "$(echo "$entry" | cut -d: -f3)" = "$gid" ] || fail "this machine has a group $name of its own"
    else
        ! getent group "$gid" >/dev/null || fail "the number $gid belongs to the group $(getent group "$gid" | cut -d: -f1)"
        groupadd --gid "$gid" "$name"
    fi
    echo "$gid" | put "$people/$name.group" 644
    # Those who could not be made are none of it.
    present=
    for login in $(echo "$members" | tr , ' '); do
        if getent passwd "$login" >/dev/null; then present="$present${present:+,}$login"; fi
    done
    if [ "$(getent group "$name" | cut -d: -f4)" != "$present" ]; then gpasswd --members "$present" "$name" >/dev/null; fi
}

# Of the people that were ever made here, those for whom the command after it is to be called.
each_made() {
    for file in "$people"/*; do
        login=${file##*/}
        case $login in '*' | *.new | *.temporary | *.group) continue ;; esac
        "$@" "$login" "$(cat "$file")"
    done
}

close_unwanted() { grep -Eq "^(user|account) $1 " "$wanted" || close_door "$1"; }
end_unwanted() {
    if grep -Eq "^(user|account) $1 " "$wanted"; then return 0; fi
    if grep -q "^leaving $1 " "$wanted"; then
        end_logins "$1" "$2"
        return 0
    fi
    end_sessions "$1" "$2"
    if [ -e "$people/$1.temporary" ]; then remove_account "$1"; fi
}

mkdir -p "$people" "$principals" "$keys"
each_made close_unwanted
each_made end_unwanted
problem=
while read -r word login uid sudo principal remote; do
    # One who cannot be made must not keep the others out; each reason is told.
    case $word in
    user) said=$(open_door "$login" "$uid" "$sudo" "$principal" "$remote" 2>&1) || problem="$problem
refused $login: $said" ;;
    account) said=$(keep_account "$login" "$uid" 2>&1) || problem="$problem
refused $login: $said" ;;
    esac
done <"$wanted"
for file in "$people"/*.group; do
    name=${file##*/}
    name=${name%.group}
    if [ "$name" = '*' ] || grep -q "^group $name " "$wanted"; then continue; fi
    if getent group "$name" >/dev/null; then groupdel "$name" || fail "cannot remove the group $name"; fi
    rm -f "$file"
done
while read -r word name gid members; do
    [ "$word" = group ] || continue
    said=$(keep_group "$name" "$gid" "$members" 2>&1) || problem="$problem
refused $name: $said"
done <"$wanted"
[ -z "$problem" ] || fail "$problem"
