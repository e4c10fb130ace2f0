# Makes the people of a machine exactly those that are wanted. Whatever was interrupted, the next run puts it right.
#
# $1  a directory with one file for each person that was ever made here; it holds the person's number
# $2  where sshd looks for the principals of a user     $3  where it looks for the keys of a user
# $4  the people that are wanted, a line each: `user LOGIN UID SUDO PRINCIPAL REMOTE`, `key LOGIN
#     LINE`; sshd listens (`ssh -R`) for the members of the group gpuaas-remote, those with REMOTE 1
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

end_sessions() {
    loginctl disable-linger "$1" >/dev/null 2>&1 || :
    loginctl terminate-user "$1" >/dev/null 2>&1 || :
    # What was started through sudo belongs to root, and to the login that it came from.
    for process in /proc/[0-9]*; do
        if [ "$(cat "$process/loginuid" 2>/dev/null)" = "$2" ]; then kill -KILL "${process#/proc/}" 2>/dev/null || :; fi
    done
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
    for file in "$people"/*; do
        old=${file##*/}
        [ "$old" != "$login" ] && [ "$(cat "$file" 2>/dev/null)" = "$uid" ] || continue
        case $old in *.new) continue ;; esac
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

open_door() {
    login=$1 uid=$2 sudo=$3 principal=$4 remote=$5
    take_over
    if entry=$(getent passwd "$login"); then
        [ "$(echo "$entry" | cut -d: -f3)" = "$uid" ] || fail "this machine has a user $login of its own"
    else
        ! getent passwd "$uid" >/dev/null || fail "the number $uid belongs to $(getent passwd "$uid" | cut -d: -f1)"
        ! getent group "$login" >/dev/null || fail "this machine has a group $login of its own"
        groupadd --gid "$uid" "$login"
        useradd --uid "$uid" --gid "$uid" --create-home --shell /bin/bash --comment GPUaaS "$login" 2>/dev/null ||
            getent passwd "$login" >/dev/null || fail "cannot make the user $login"
    fi
    echo "$uid" | put "$people/$login" 644
    usermod --expiredate '' "$login"
    if [ "$sudo" = 1 ]; then
        # sudo reads no file with a dot in its name: this one counts when it is whole.
        echo "$login ALL=(ALL) NOPASSWD: ALL" >"/etc/sudoers.d/.gpuaas-$login"
        chmod 0440 "/etc/sudoers.d/.gpuaas-$login"
        mv -f "/etc/sudoers.d/.gpuaas-$login" "/etc/sudoers.d/gpuaas-$login"
    else
        rm -f "/etc/sudoers.d/gpuaas-$login"
    fi
    if [ "$remote" = 1 ]; then
        getent group gpuaas-remote >/dev/null || groupadd --system gpuaas-remote
        gpasswd --add "$login" gpuaas-remote >/dev/null
    elif id -nG "$login" | grep -qw gpuaas-remote; then
        gpasswd --delete "$login" gpuaas-remote >/dev/null
    fi
    sed -n "s/^key $login //p" "$wanted" | put "$keys/$login" 644
    echo "$principal" | put "$principals/$login" 644
}

mkdir -p "$people" "$principals" "$keys"
for file in "$people"/*; do
    login=${file##*/}
    case $login in '*' | *.new) continue ;; esac
    grep -q "^user $login " "$wanted" || close_door "$login"
done
for file in "$people"/*; do
    login=${file##*/}
    case $login in '*' | *.new) continue ;; esac
    grep -q "^user $login " "$wanted" || end_sessions "$login" "$(cat "$file")"
done
problem=
while read -r word login uid sudo principal remote; do
    [ "$word" = user ] || continue
    # One who cannot be made must not keep the others out; the first reason is told.
    said=$(open_door "$login" "$uid" "$sudo" "$principal" "$remote" 2>&1) || problem=${problem:-$said}
done <"$wanted"
[ -z "$problem" ] || fail "$problem"
