#!/bin/sh
# Who may log in under a lease, and whose sessions are over. The agent keeps a directory with one file for each login
# name, with a line for each principal that may use it; the machine itself cannot write there.
#
# ask DIRECTORY LOGIN KEY_ID   sshd asks: prints the line of the certificate's principal, where it may log in now.
#                              The id of a certificate begins with its principal: leased thing, slash, fencing token.
# cut DIRECTORY OBSERVER       ends the sessions of principals that may not log in any more, with all that they run
set -eu
umask 077
sessions=/run/gpuaas-sessions
action=$1 directory=$2

# In clock ticks since boot: a number that was given to another process meanwhile has another one.
started() {
    read -r line 2>/dev/null <"/proc/$1/stat" || return 1
    # shellcheck disable=SC2086
    set -- ${line##*) }
    echo "${20}"
}

may_enter() {
    [ -f "$directory/$1" ] || return 1
    while read -r line; do
        case " $line" in *" $2") echo "$line" && return 0 ;; esac
    done <"$directory/$1"
    return 1
}

end_tree() {
    kill -STOP "$1" 2>/dev/null || :
    for child in $(pgrep -P "$1"); do end_tree "$child"; done
    kill -KILL "$1" 2>/dev/null || :
}

case $action in
ask)
    login=$3 leased=${4%%/*} rest=${4#*/}
    principal=$leased/${rest%%/*}
    case $principal in *[!A-Za-z0-9_/]* | /* | */) exit 0 ;; esac
    # Noted before the look: who was let in just before the door was closed is found when sessions are cut.
    mkdir -p "$sessions"
    echo "$login $principal" >"$sessions/$PPID.$(started "$PPID")"
    may_enter "$login" "$principal" || :
    ;;
cut)
    for file in "$sessions"/*; do
        name=${file##*/}
        process=${name%%.*}
        if [ "$(started "$process")" != "${name#*.}" ]; then
            rm -f "$file"
            continue
        fi
        read -r login principal <"$file" || continue
        may_enter "$login" "$principal" >/dev/null && continue
        end_tree "$process"
        rm -f "$file"
    done
    # What an observer left running may look no longer than observers may.
    [ -s "$directory/$3" ] || pkill -KILL -u "$3" 2>/dev/null || :
    ;;
esac
