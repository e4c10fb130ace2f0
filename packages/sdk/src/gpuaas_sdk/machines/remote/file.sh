# One file, replaced atomically under the fence. Its content comes over standard input only.
path=$1 mode=$2 owner=$3
raise_fence
settle_older_units
if [[ ! -d ${path%/*}/ ]]; then
  echo "there is no directory ${path%/*}/" >&2
  exit 73
fi
new=$(mktemp "${path%/*}/.gpuaas.XXXXXXXX")
trap 'rm -f "$new" "$new.part"' EXIT
receive "$new"
chown "$owner" "$new"
chmod "$mode" "$new"
exec 9>"$fences/$instance.lock"
flock 9
check_fence
mv -fT "$new" "$path"
trap - EXIT
logger -t gpuaas "wrote $path for $operation ($correlation, token $token)" || true
printf 'gpuaas-file\n'
