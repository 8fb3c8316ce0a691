#!/bin/sh
# Programs of two guests, one pair after the other, so that they boot once for all of them.
#
# `pair.sh serve`, in the first guest, runs what the second one asks for, to the command `pair.sh end` there.
# `pair.sh at vm1 COMMAND...`, in the second guest, runs a command in the first one; it is a remote shell for MPI.
# `pair.sh both PORT COMMAND...` runs a server there, which listens at the port, and its client here, whose lines begin
# with the command.
at() {
  host=$1
  shift
  echo "exec $*" | nc "$host" 2222
}

case $1 in
serve)
  nc -ll -p 2222 -e sh &
  echo $! >/root/server
  wait
  # The client sees the end of its last connection before this guest's network is gone; it would wait for ever otherwise.
  while netstat -tn | grep ':2222 ' | grep -qv TIME_WAIT; do sleep 0.1; done
  ;;
end) at vm1 'kill $(cat /root/server)' ;;
both)
  port=$2
  shift 2
  at vm1 "$@" >/tmp/server 2>&1 &
  until at vm1 netstat -ltn | grep -q ":$port "; do sleep 0.2; done
  "$@" vm1 >/tmp/client
  status=$?
  [ $status = 0 ] || { echo "vm1 said:"; cat /tmp/server; }
  wait $!
  sed "s#^#$*: #" /tmp/client
  exit $status
  ;;
at)
  shift
  at "$@"
  ;;
# As Open MPI calls its remote shell.
*) at "$@" ;;
esac
