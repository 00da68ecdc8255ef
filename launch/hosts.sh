#!/usr/bin/env bash
# Starts one run on several plain machines over ssh. Each machine gets one process, which uses all its GPUs.
#
#   jaxpose launch --template hosts > hosts.sh
#   bash hosts.sh "node1 node2" python -m jaxpose.train my-project
#   bash hosts.sh "$(cat hosts.txt)" python -m jaxpose.train my-project
#
# - The first host is process 0: it prints the progress and writes the run folder.
# - Every host needs the same jaxpose and the same files under the same paths (a shared folder). The command runs on
#   every host in the folder in which you start this script. `ssh HOST` must work without a password.
# - To check the hosts first: bash hosts.sh "node1 node2" python -m jaxpose.doctor
# - Ctrl-C, or SIGTERM to this script: every process saves and stops (exit code 85). The same command resumes the run.
#   A second Ctrl-C kills them. If a process fails, or this script dies, the other processes are stopped.
# - The output of each host is appended to logs/<date>-<time>/<index>-<host>.log. This terminal also shows the output of
#   the first host.
#
# Variables that you may set before the command:
#   PORT=12355         a port that is open between the hosts
#   COORDINATOR=host   name by which the other hosts know the first one, if it differs from its ssh name
#   SETUP='...'        a line that each host runs first, such as SETUP='source ~/venv/bin/activate'
#   LOGS=folder        folder of the logs
#   PATIENCE_S=10      seconds that the other processes get to stop after a failure, before they are killed
set -uo pipefail

if (($# < 2)); then
  sed -n '2,6p' "${BASH_SOURCE[0]}" >&2
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

# Prints the script of process $1. Each host reads it from ssh, followed by the names of signals, one per line. The end
# of the input means that this script has died.
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

# Only this script holds the pipes open: if it dies, even by kill -9, every host sees the end of its input.
trap '' PIPE
pipes=() pids=()
# Prepares a background process of this script: it must not hold the pipes open, and it ignores the terminal's Ctrl-C,
# which this script forwards itself.
detach() {
  trap '' INT
  for pipe in ${pipes[@]+"${pipes[@]}"}; do exec {pipe}>&-; done
}
for index in "${!hosts[@]}"; do
  mkfifo "$work/$index"
  log=$logs/$index-${hosts[index]}.log
  (
    detach
    exec ssh -o BatchMode=yes -o ServerAliveInterval=15 "${hosts[index]}" bash <"$work/$index" >>"$log" 2>&1
  ) &
  pids+=($!)
  exec {pipe}>"$work/$index"
  pipes+=("$pipe")
  on_host "$index" "$@" >&"$pipe" 2>/dev/null # the write fails if ssh has failed already
done
rm -r "$work"
echo "${#hosts[@]} processes, process 0 on ${hosts[0]}; logs in $logs" >&2
(detach && exec tail -n +1 -F --pid="${pids[0]}" "$logs/0-${hosts[0]}.log" 2>/dev/null) &
shown=$!

send() {
  for pipe in "${pipes[@]}"; do echo "$1" >&"$pipe"; done 2>/dev/null
}
asked=0
trap 'send TERM' TERM
trap 'if ((asked++)); then send KILL; else send TERM; fi' INT

# Waits until all processes have ended. $failed is the code of the process that failed first, not of one that ended
# because of that failure (75, or 134 by JAX).
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
    # 3, 4, 85 and 130 are orderly ends.
    case $code in
      3 | 4 | 85 | 130) ;;
      *) ((kill_at)) || { send TERM; kill_at=$((SECONDS + patience_s)); } ;;
    esac
  done
  if ((kill_at && running && SECONDS >= kill_at)); then send KILL; fi
done
wait "$shown"
exit "$failed"
