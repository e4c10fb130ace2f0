# Runs on a machine as root. A record is a directory with two lists of lines "KIND NAME": `brought` has what the app
# brings, written before it is; `kept` has what was there already under a name of the app's. Without `brought` there is
# no record, and nothing is removed.
export LC_ALL=C

# Members of one instance may share a machine: one of them at a time reads a list and writes it anew.
hold_record() {
  mkdir -p "${record%/*}"
  exec 7<"${record%/*}"
  flock 7
}
release_record() { exec 7<&-; }

# write_list NAME: replace a list by standard input. On disk before this returns, or as it was before.
write_list() {
  sort -u >"$record/$1.new"
  if cmp -s "$record/$1.new" "$record/$1"; then
    rm -f "$record/$1.new"
  else
    sync "$record/$1.new"
    mv -f "$record/$1.new" "$record/$1"
    sync "$record" "${record%/*}"
  fi
}
list() { if [ -e "$record/$1" ]; then cat "$record/$1"; fi; }
given() { if [ "${#entries[@]}" -gt 0 ]; then printf '%s\n' "${entries[@]}" | sort -u; fi; }
# on LIST / not_on LIST: of the lines on standard input, those that are on it, or are not.
on() { sort -u | comm -12 - <(list "$1"); }
not_on() { sort -u | comm -23 - <(list "$1"); }

is_there() {
  case $1 in
    user) getent passwd "$2" >/dev/null ;;
    group) getent group "$2" >/dev/null ;;
    unit) [ "$(systemctl show --property=LoadState --value "$2")" != not-found ] ;;
    *) [ -e "$2" ] || [ -L "$2" ] ;;
  esac
}
there_now() {
  local kind name
  while read -r kind name; do
    if is_there "$kind" "$name"; then echo "$kind $name"; fi
  done
}
# Of the lines on standard input, those that are there: now, or at the time of the snapshot where there is one.
there_before() {
  if [ ! -d "$record/baseline" ]; then
    there_now
    return
  fi
  awk -v where="$record/baseline" '
    BEGIN { lists["user"] = "users"; lists["group"] = "groups"; lists["unit"] = "units" }
    { list = ($1 in lists) ? lists[$1] : "paths"; lines[list, substr($0, length($1) + 2)] = $0 }
    END {
      count = split("users groups units paths", names, " ")
      for (i = 1; i <= count; i++)
        while ((getline name <(where "/" names[i])) > 0)
          if ((names[i], name) in lines) print lines[names[i], name]
    }'
}

# Records of earlier forms: a snapshot of the machine, or the mere time at which none of the app's names was there.
ensure_listed() {
  if [ -e "$record/brought" ]; then return; fi
  if [ -d "$record/baseline" ]; then
    printf '%s\n' "${all_entries[@]}" | there_before | write_list kept
  elif [ ! -e "$record/before" ]; then
    return
  fi
  printf '%s\n' "${all_entries[@]}" | not_on kept | write_list brought
}

# Put the given names on the record. Prints those that were there already, and are not ours.
bring() {
  local found
  hold_record
  ensure_listed
  mkdir -p "$record"
  chmod 0700 "$record"
  found=$(given | not_on brought | there_before)
  { list kept | comm -23 - <(given); printf '%s' "$found${found:+$'\n'}"; } | write_list kept
  if [ -n "$found" ] && [ "$1" = refuse ]; then
    list brought | write_list brought
    release_record
    echo "$found"
    exit 9
  fi
  { list brought; given | not_on kept; } | write_list brought
  release_record
}

# ours KIND…: the names of these kinds that were given and are on the record.
ours() {
  local kind name
  given | on brought | while read -r kind name; do
    case " $* " in *" $kind "*) echo "$name" ;; esac
  done
}
remove_units() {
  local unit units
  units=$(ours unit)
  for unit in $units; do
    if is_there unit "$unit"; then
      systemctl disable --quiet "$unit" 2>/dev/null || true
      systemctl stop "$unit"
    fi
    rm -f "/etc/systemd/system/$unit"
    systemctl reset-failed "$unit" 2>/dev/null || true
  done
  if [ -n "$units" ]; then systemctl daemon-reload; fi
}
remove_paths() {
  local path
  for path in $(ours tree); do rm -rf --one-file-system "$path"; done
  for path in $(ours file); do rm -f "$path"; done
}
# What a cut connection left half written is nobody's.
remove_directories() {
  local path
  for path in $(ours directory | sort -r); do
    if [ -d "$path" ] && [ ! -L "$path" ]; then
      rm -f "$path"/.gpuaas.???????? "$path"/.gpuaas.????????.part
      rmdir "$path" 2>/dev/null || true
    fi
  done
}
# Daemons have the numbers that people do not have. An account of a person is never the app's, whatever it is called.
is_daemons() {
  local number
  number=$(getent "$1" "$2" | cut -d: -f3)
  [ -n "$number" ] && { [ "$number" -lt 1000 ] || [ "$number" -ge 60000 ]; }
}
# Before an account goes, its number is noted: what has that number afterwards was left by it.
note_numbers() {
  local name
  [ -e "$record/brought" ] || return 0
  hold_record
  {
    list numbers
    for name in $(ours user); do
      if is_daemons passwd "$name"; then echo "user $name $(getent passwd "$name" | cut -d: -f3)"; fi
    done
    for name in $(ours group); do
      if is_daemons group "$name"; then echo "group $name $(getent group "$name" | cut -d: -f3)"; fi
    done
  } | write_list numbers
  release_record
}
remove_users() {
  local name
  note_numbers
  for name in $(ours user); do
    if is_daemons passwd "$name"; then userdel "$name"; fi
  done
  for name in $(ours group); do
    if is_daemons group "$name"; then groupdel "$name"; fi
  done
}

still_there() {
  local kind name
  while read -r kind name; do
    case $kind in
      user) is_daemons passwd "$name" || continue ;;
      group) is_daemons group "$name" || continue ;;
      *) is_there "$kind" "$name" || continue ;;
    esac
    echo "$kind $name"
  done
}
# left KIND…: what is still there. Without a record everything of that name counts: nobody knows whose it is.
left() {
  local kind name
  if [ -e "$record/brought" ]; then given | on brought; else given; fi | still_there | while read -r kind name; do
    case " $* " in *" $kind "*) echo "$name" ;; esac
  done
}
left_paths() {
  local path
  left tree file
  left directory | while read -r path; do
    if [ -z "$(ls -A "$path")" ]; then echo "$path"; fi
  done
}
# noted KIND: lines "NUMBER NAME" of the accounts of ours, or of their groups.
noted() {
  local kind name number
  list numbers | while read -r kind name number; do
    if [ "$kind" = "$1" ] && ours "$1" | grep -Fxq -- "$name"; then echo "$number $name"; fi
  done
}
# Other accounts with the number of one of ours, and what lets one of ours do more, or do it later.
left_accounts() {
  local number name path
  noted user | while read -r number name; do
    getent passwd | awk -F: -v number="$number" -v name="$name" '$3 == number && $1 != name { print "user " $1 " is " name }'
  done
  noted group | while read -r number name; do
    getent group | awk -F: -v number="$number" -v name="$name" '$3 == number && $1 != name { print "group " $1 " is " name }'
  done
  for name in $(ours user); do
    for path in "/var/spool/cron/crontabs/$name" "/var/lib/systemd/linger/$name"; do
      if [ -e "$path" ]; then echo "$path"; fi
    done
    grep -rlsE -- "^[[:space:]]*$name[[:space:]]" /etc/sudoers /etc/sudoers.d || true
  done
}
left_processes() {
  local number name process
  noted user | while read -r number name; do
    for process in /proc/[0-9]*; do
      if [ "$(stat -c %u "$process" 2>/dev/null)" = "$number" ]; then
        echo "${process#/proc/} $(cat "$process/comm" 2>/dev/null || true) of $name"
      fi
    done
  done
}
# Wherever they are on the machine's own disks; logs may stay, and volumes are the project's.
left_files() {
  local number name
  {
    noted user | while read -r number name; do files_with -uid "$number"; done
    noted group | while read -r number name; do files_with -gid "$number"; done
  } | sort -u | sed -n 1,50p
}
files_with() {
  find / /run /tmp /dev/shm -xdev \( -path /proc -o -path /sys -o -path /var/log -o -path "$record" \) -prune \
    -o "$@" -print 2>/dev/null || true
}
kept_of_others() {
  local path
  [ -e "$record/brought" ] || return 0
  given | not_on brought | there_now
  given | on brought | there_now | comm -23 - <(given | on brought | still_there)
  left directory | while read -r path; do find "$path" -mindepth 1; done
}
recorded() {
  if [ -e "$record/brought" ]; then
    echo "sha256:$(sha256sum <"$record/brought" | cut -d' ' -f1), $(given | on brought | wc -l) names"
  fi
}

# Strike the given names off. The record goes with its last name, unless it still says what is somebody else's.
forget() {
  hold_record
  if [ -e "$record/brought" ]; then
    list brought | comm -23 - <(given) | write_list brought
    if [ ! -s "$record/brought" ]; then
      list kept | there_now | write_list kept
      if [ -s "$record/kept" ]; then
        find "$record" -mindepth 1 -maxdepth 1 ! -name brought ! -name kept -exec rm -rf {} +
      else
        rm -rf "$record"
      fi
    fi
  fi
  release_record
}
still_recorded() { given | on brought; }
