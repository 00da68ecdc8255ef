#!/usr/bin/env bash
# Starts one run on several plain machines over ssh, one process on each, which drives all GPUs of its machine.
#
#   bash launch/hosts.sh "node1 node2" python -m jaxpose.train --config configs/pose.py
#   bash launch/hosts.sh "$(cat hosts.txt)" python -m jaxpose.train --config configs/pose.py
#
# - The first host is process 0: it prints, and it writes the run folder.
# - Every host needs the same jaxpose, and sees the same files under the same paths (a shared folder): the command runs
#   there in the folder that you start this in. `ssh HOST` must work without a password.
# - To look at the hosts first: bash launch/hosts.sh "node1 node2" python -m jaxpose.doctor
# - Ctrl-C, or SIGTERM to this script: every process saves and stops (exit code 85); the same command goes on from there.
#   A second Ctrl-C kills. If one process fails, or this script dies, the others are stopped.
# - What each host says is added to logs/<date>-<time>/<index>-<host>.log; what the first one says is shown here too.
#
# What you may want to change, as variables before the command:
#   PORT=12355         a port that is open between the hosts
#   COORDINATOR=host   the first host as the others know it, if that is not its ssh name
#   SETUP='...'        a line that each host runs first, such as SETUP='source ~/venv/bin/activate'
#   LOGS=folder        where the logs go
#   PATIENCE_S=10      seconds until a process that was told to stop, because another one failed, is killed
set -uo pipefail

if (($# < 2)); then
  sed -n '2,5p' "${BASH_SOURCE[0]}" >&2
  exit 2
fi
read -rd '' -a hosts <<<"$1"
shift
port=${PORT:-12355}
coordinator=${COORDINATOR:-${hosts[0]#*@}}
logs=${LOGS:-logs/$(date +%Y%m%d-%H%M%S)}
patience_s=${PATIENCE_S:-10}

mkdir -p "$logs" || exit 1
work=$(mktemp -d) || exit 1

# The script of process $1. Each host reads it from ssh, and after it the names of signals, a line each; the end of these
# lines means that nobody here is left to send one.
on_host() {
  cat <<REMOTE
{
cd $(printf %q "$PWD") || exit 1
${SETUP:-}
export JAXPOSE_COORDINATOR=$(printf %q "$coordinator:$port")
export JAXPOSE_NUM_PROCESSES=${#hosts[@]} JAXPOSE_PROCESS_ID=$1 PYTHONUNBUFFERED=1
exec 3<&0
$(printf '%q ' "${@:2}") </dev/null 3<&- &
child=\$!
{
  while read -r signal <&3; do kill -s "\$signal" \$child; done
  kill -s TERM \$child; sleep $patience_s; kill -s KILL \$child
} >/dev/null 2>&1 &
watcher=\$!
wait \$child
code=\$?
kill \$watcher
exit \$code
}
REMOTE
}

# The pipe of each host is held open here alone: if this script dies, even by kill -9, every host sees its end.
trap '' PIPE
pipes=() pids=()
# What runs beside this script: without those pipes, and deaf to the Ctrl-C of the terminal, which comes from here.
apart() {
  trap '' INT
  for pipe in ${pipes[@]+"${pipes[@]}"}; do exec {pipe}>&-; done
}
for index in "${!hosts[@]}"; do
  mkfifo "$work/$index"
  log=$logs/$index-${hosts[index]}.log
  (
    apart
    exec ssh -o BatchMode=yes -o ServerAliveInterval=15 "${hosts[index]}" bash <"$work/$index" >>"$log" 2>&1
  ) &
  pids+=($!)
  exec {pipe}>"$work/$index"
  pipes+=("$pipe")
  on_host "$index" "$@" >&"$pipe" 2>/dev/null # no reader is left where ssh has failed already
done
rm -r "$work"
echo "${#hosts[@]} processes, process 0 on ${hosts[0]}; logs in $logs" >&2
(apart && exec tail -n +1 -F --pid="${pids[0]}" "$logs/0-${hosts[0]}.log" 2>/dev/null) &
shown=$!

tell() {
  for pipe in "${pipes[@]}"; do echo "$1" >&"$pipe"; done 2>/dev/null
}
asked=0
trap 'tell TERM' TERM
trap 'if ((asked++)); then tell KILL; else tell TERM; fi' INT

# Until all have ended; $failed is the code of the first that failed, and not of one that ended because of it (75, or 134 by JAX).
running=${#hosts[@]} failed=0 kill_at=0
while ((running)); do
  sleep 0.5 &
  wait $! || true
  for index in "${!hosts[@]}"; do
    pid=${pids[index]}
    [[ $pid ]] && ! kill -0 "$pid" 2>/dev/null || continue
    wait "$pid"
    code=$?
    pids[index]='' running=$((running - 1))
    ((code == 0)) && continue
    echo "process $index on ${hosts[index]} ended with exit code $code; see $logs/$index-${hosts[index]}.log" >&2
    ((failed == 0 || failed == 75 || failed == 134)) && failed=$code
    # 3, 4, 85 and 130 are ends in good order.
    case $code in
      3 | 4 | 85 | 130) ;;
      *) ((kill_at)) || { tell TERM; kill_at=$((SECONDS + patience_s)); } ;;
    esac
  done
  if ((kill_at && running && SECONDS >= kill_at)); then tell KILL; fi
done
wait "$shown"
exit "$failed"
