# Runs on a machine as root, in front of step.sh and file.sh. Fencing tokens grow with every claim of any
# operation. A fence file holds the highest token seen for its scope: the whole instance (operations on the
# instance) or one member of it, so that two members on one machine do not shut each other out.
set -euo pipefail
umask 077
export HOME=/root LC_ALL=C.UTF-8
instance=$1 scope=$2 operation=$3 token=$4 correlation=$5 length=$6
shift 6

steps=/run/gpuaas/steps
fences=/var/lib/gpuaas/fence
mkdir -p "$steps" "$fences"

number_in() {
  local value=0
  if [[ -s $1 ]]; then read -r value <"$1"; fi
  printf '%s' "$value"
}

# Prints what was seen and ends, where a newer token than ours was seen on this machine.
check_fence() {
  local file highest
  for file in "$fences/$instance" "$fences/$scope"; do
    highest=$(number_in "$file")
    if ((highest > token)); then
      printf 'gpuaas-fenced %s\n' "$highest"
      exit 0
    fi
  done
}

raise_fence() {
  exec 9>"$fences/$instance.lock"
  flock 9
  check_fence
  if (($(number_in "$fences/$scope") < token)); then
    printf '%s\n' "$token" >"$fences/$scope.new"
    mv -f "$fences/$scope.new" "$fences/$scope"
  fi
  exec 9>&-
}

is_live() {
  case $(systemctl show --property=ActiveState --value "$1.service") in
    inactive | failed | "") return 1 ;;
    *) return 0 ;;
  esac
}

# A unit of our own operation does what we are about to do: let it end. One of an operation that was
# pre-empted gets a while, because a half-configured package is worse than half a minute.
wait_for_unit() {
  local unit=$1 patience=$2
  local give_up=$((SECONDS + patience))
  while is_live "$unit"; do
    if ((SECONDS >= give_up)); then systemctl stop "$unit.service" || true; fi
    sleep 0.2
  done
}

# Older units that passed their own fence check before we raised the fence are still at work.
settle_older_units() {
  local meta unit its_instance its_scope its_operation its_token
  if (($(number_in "$fences/$scope.settled") == token)); then return; fi
  for meta in "$steps"/*/meta; do
    [[ -e $meta ]] || continue
    read -r unit its_instance its_scope its_operation its_token <"$meta" || continue
    if [[ $its_instance != "$instance" ]] || ((its_token >= token)); then continue; fi
    [[ $scope == "$instance" || $its_scope == "$instance" || $its_scope == "$scope" ]] || continue
    if [[ $its_operation == "$operation" ]]; then
      wait_for_unit "$unit" 86400
    else
      wait_for_unit "$unit" 30
    fi
    # Unless the shell that started it is still there to fetch its outcome, it goes.
    flock -n "${meta%/meta}.lock" rm -rf "${meta%/meta}" "${meta%/meta}.lock" || true
  done
  printf '%s\n' "$token" >"$fences/$scope.settled"
}

# The whole of standard input, or nothing: a cut connection must not leave half a file.
receive() {
  head -c "$length" >"$1.part"
  if (($(stat -c %s "$1.part") != length)); then
    rm -f "$1.part"
    echo "received less than the announced $length bytes" >&2
    exit 75
  fi
  mv -f "$1.part" "$1"
}
