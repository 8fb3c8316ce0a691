# Runs a program in a container: its root directory has the files of an image, and efa-emu is mounted there
# as `docker run -v` does it. Nothing of the environment outside is known in it.
# usage: sh image.sh IMAGE EFA-EMU PROGRAM [ARG]...
set -eu
if [ "$1" != --inside ]; then
  exec unshare --user --map-root-user --mount sh "$0" --inside "$@"
fi
image=$2 emulator=$3
shift 3
prefix=${emulator%/*/*}
place=$(mktemp -d)
# What is made in the image is in memory.
mount -t tmpfs tmpfs "$place"
for directory in "$image"/*; do
  name=${directory##*/}
  if [ -L "$directory" ]; then
    cp --no-dereference "$directory" "$place"
  else
    mkdir "$place/$name"
    mount --bind "$directory" "$place/$name"
  fi
done
for directory in dev proc sys; do
  mkdir -p "$place/$directory"
  mount --rbind /$directory "$place/$directory"
done
mkdir -p "$place/opt/efa" "$place/tmp"
mount --bind "$prefix" "$place/opt/efa"
exec env -i PATH=/usr/bin:/bin unshare --root "$place" \
  "/opt/efa/${emulator#"$prefix"/}" run --quiet --fabric "$EFA_EMU_FABRIC" --host "$EFA_EMU_HOST" -- "$@"
