"""Build the files of a sandbox in a mount namespace of its own, then run a command there.

``sandbox.py`` starts it by ``unshare`` where bubblewrap may not be used; it imports nothing of the course.
"""

import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile

UP, SET_FLAGS = 0x1 | 0x40, 0x8914  # IFF_UP | IFF_RUNNING, SIOCSIFFLAGS of netdevice(7)
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")


def mount(*arguments):
    subprocess.run(["mount", *arguments], check=True)


def put(place, root, read_only=True):
    """Show ``place`` of the machine at the same path under ``root``."""
    target = root + place
    if os.path.islink(place):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.symlink(os.readlink(place), target)
        return
    if os.path.isdir(place):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if not os.path.exists(target):
            open(target, "w").close()
    mount("--rbind", place, target)
    if read_only:
        mount("-o", "remount,bind,ro,nosuid", target)


def unused(needed):
    """Return a folder of the machine above none of ``needed``: a mount upon it is gone with the namespace."""
    for folder in ("/mnt", "/media", "/srv", "/opt", "/home"):
        if os.path.isdir(folder) and not any(f"{place}/".startswith(f"{folder}/") for place in needed):
            return folder
    return tempfile.mkdtemp()  # an empty one, which stays


def main():
    plan = json.loads(sys.argv[1])
    os.umask(0o022)
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SET_FLAGS, struct.pack("16sh14x", b"lo", UP))
    socket.sethostname("localhost")
    root = unused([*plan["readable"], plan["work"] or "", *(source for source, _ in plan["replaced"])])
    mount("--make-rprivate", "/")
    mount("-t", "tmpfs", "-o", "size=16m,mode=755", "tmpfs", root)
    for folder in ("/proc", "/dev/shm", "/tmp"):
        os.makedirs(root + folder)
    mount("-t", "proc", "proc", root + "/proc")
    for folder in ("/dev/shm", "/tmp"):
        mount("-t", "tmpfs", "-o", "size=256m,mode=1777", "tmpfs", root + folder)
    for place in (*(f"/dev/{name}" for name in DEVICES), *plan["devices"]):
        put(place, root, read_only=False)
    for place in plan["readable"]:
        put(place, root)
    for source, place in plan["replaced"]:
        if os.path.exists(root + place):
            mount("--bind", source, root + place)
    if plan["work"]:
        put(plan["work"], root, read_only=False)
    mount("-o", "remount,bind,ro", root)
    os.chroot(root)
    os.chdir("/tmp")
    os.execvpe(plan["command"][0], plan["command"], plan["environment"])


if __name__ == "__main__":
    main()
