# Runs the commands of a block, in a directory like a clone that was built, with the programs in
# the path.
# usage: bash block.sh SCRIPT QUIET TRACE...; ROOT, PROGRAMS and TMPDIR are set
# QUIET is the exit status with which nothing is printed, or `-`.
set -euo pipefail

# In namespaces the block sees no fabrics, ports and processes of the machine, and what it starts
# ends with it. Where the system forbids them, blocks take turns.
if [ -z "${EFA_PAGES:-}" ]; then
    alone=(setpriv --pdeathsig KILL unshare --user --map-root-user
        --mount --net --pid --fork --mount-proc --kill-child)
    if "${alone[@]}" sh -c 'mount -t tmpfs tmpfs /dev/shm && ip link set lo up' 2>/dev/null; then
        EFA_PAGES=alone exec "${alone[@]}" bash "$0" "$@"
    fi
    EFA_PAGES=shared exec flock "${TMPDIR%/*}/pages.lock" bash "$0" "$@"
fi

script=$1 quiet=$2
shift 2
export HOME=$(mktemp -d)
clone=$HOME/efa
mkdir -p "$clone"/target "$clone"/traces/written
# Those two are its own, since commands write there.
ln -s "$ROOT"/* "$clone" 2>/dev/null || true
for profile in debug release; do ln -s "$PROGRAMS" "$clone/target/$profile"; done
ln -s "$ROOT/target/userland" "$clone/target"
for trace in "$@"; do
    # A scenario with packets has no capture.
    cp "$ROOT/traces/$trace".* "$clone/traces/$(dirname "$trace")"
done
export PATH=$clone/target/release:$PATH SEEN=$HOME/seen
unset MAKEFLAGS MAKELEVEL CARGO
if [ "$EFA_PAGES" = alone ]; then
    mount -t tmpfs tmpfs /dev/shm
    ip link set lo up
    # The corpus that programs take if nobody names traces.
    mount --bind "$clone/traces" "$ROOT/traces"
fi
cd "$clone"

# Waits until a command succeeds. The time limit is that of the test.
until_true() { until "$@"; do sleep 0.05; done; }
# Waits until fi_pingpong waits for its client.
until_listening() { until_true grep -q ':B9E8 [0-9A-F:]* 0A ' /proc/net/tcp /proc/net/tcp6; }
# The other terminal of a ping-pong.
client() { until_listening && efa-emu run "$@" -- fi_pingpong -p efa -e rdm 127.0.0.1 >client.log; }
# Ends a command with Ctrl+C when a condition is true. usage: interrupt CONDITION COMMAND...
interrupt() {
    local condition=$1 process
    shift
    set -m
    "$@" &
    process=$!
    set +m
    until_true eval "$condition"
    kill -INT -- "-$process"
    wait "$process"
}

run() {
    set -e
    . "$script"
    for process in $(jobs -p); do wait "$process"; done
}
# As the pages call what is elsewhere here. Wireshark's programs warn root, as whom containers often
# run; Open MPI warns on a busy machine, where its child calls setpgid and exec before it. Programs
# write buffers that end within a character, and another stream's line may come between.
as_shown() {
    iconv -c -f UTF-8 -t UTF-8 | sed -e "s|$PROGRAMS|~/efa/target/release|g" -e "s|$HOME|~|g" \
        -e '/^efa-emu: note: you are root/d' -e '/^Running as user "root"/d' \
        -e '/plm:rsh: Warning: setpgid(.*) failed in parent/d'
}
set +e
(run) >"$SEEN" 2>&1
status=$?
[ "$status" = "$quiet" ] || as_shown <"$SEEN"
exit "$status"
