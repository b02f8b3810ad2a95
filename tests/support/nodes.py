"""Several machines in one: each node has a network, a hostname, a hosts file and a /dev/shm of its own.

    with Nodes(folder) as nodes:
        runs = [node.torchrun(2, script, "--epochs", 2, nnodes=2) for node in nodes]
        nodes.cut()

Nodes are Linux namespaces, with a cable between them (veth(4)): no program here can tell them from two machines that
share a disk. They have no name that keeps them, so they last as long as the processes in them, and those are tied to
the tests (utils/launch/tether.py): not even a crash leaves anything behind. Ordinary users can make them where the
system lets them have user namespaces.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from utils.launch import processes as system
from utils.launch.rank_logs import RankLogs
from utils.launch.warm import _Server

# Tools, and Debian's packages that hold them.
TOOLS = {"ip": "iproute2", "unshare": "util-linux", "nsenter": "util-linux", "mount": "mount", "hostname": "hostname"}
NAMES = ("node0", "node1")
ADDRESSES = ("10.99.0.1", "10.99.0.2")  # within the nodes alone: nothing outside can see or reach them
READY_S = 20
# What a node does before its first program: it waits for nobody, since another tells whether it is ready.
SET_UP = """set -e
hostname {name}
mount --bind {folder}/hosts /etc/hosts
mount -t tmpfs tmpfs /dev/shm
ip link set lo up
touch {folder}/{name}/ready
exec "$@"
"""


def what_is_missing():
    """Return why this system can have no nodes, None where it can."""
    if sys.platform != "linux":
        return "several nodes on one machine need Linux"
    lacking = sorted({package for tool, package in TOOLS.items() if not shutil.which(tool)})
    if lacking:
        return f"several nodes need Debian's packages {', '.join(lacking)}"
    tried = subprocess.run([*_unshared(), "true"], capture_output=True, text=True, timeout=20)
    return f"several nodes need root, or user namespaces ({tried.stderr.strip()})" if tried.returncode else None


def _as_root():
    return [] if os.geteuid() == 0 else ["--user"]


def _unshared():
    own = [*_as_root(), "--map-root-user"] if _as_root() else []
    return ["unshare", *own, "--net", "--uts", "--mount"]


class Nodes:
    """Two nodes, joined by a cable; what they write goes into ``folder``, which both see, as on a shared disk."""

    def __init__(self, folder):
        self.folder = Path(folder)
        hosts = [f"{address} {name}" for address, name in zip(ADDRESSES, NAMES, strict=True)]
        (self.folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *hosts, ""]))
        self._nodes = []
        try:
            for name in NAMES:  # the second belongs to the first's users, or no cable could join them
                self._nodes.append(Node(name, self.folder, inside=self._nodes[0] if self._nodes else None))
            one, other = self._nodes
            one.run("ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", str(other.pid))
            for node, address in zip(self._nodes, ADDRESSES, strict=True):
                node.run("ip", "address", "add", f"{address}/24", "dev", "eth0")
            self.mend()
        except BaseException:
            self.close()
            raise

    def __iter__(self):
        return iter(self._nodes)

    def __len__(self):
        return len(self._nodes)

    def __getitem__(self, number):
        return self._nodes[number]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def cut(self):
        """Pull out the cable at the second node: no message arrives any more, and nobody is told."""
        self._nodes[1].run("ip", "link", "set", "eth0", "down")

    def mend(self):
        """Put the cable in, on both sides."""
        for node in self._nodes:
            node.run("ip", "link", "set", "eth0", "up")

    def close(self):
        """End all that runs on the nodes; with their last process they are gone, and so is the cable."""
        for node in self._nodes:
            node.end()


class Node:
    """One of the machines: a process that forks programs off, in namespaces of its own."""

    def __init__(self, name, folder, inside=None):
        self.name, self.folder = name, folder / name
        self.temporary = self.folder / "tmp"
        self.temporary.mkdir(parents=True)
        entered = inside.entered("--user", "--preserve-credentials") if inside and _as_root() else []
        unshared = ["unshare", "--net", "--uts", "--mount"] if entered else _unshared()
        script = SET_UP.format(name=name, folder=folder)

        def start_within(command, options):
            return system._starter.start([*entered, *unshared, "sh", "-c", script, "sh", *command], options)

        self._server = _Server(dict(os.environ), start_within)
        self.pid = self._server._process.pid
        self.network = None  # until it is ready, its processes are in that of the tests
        deadline = time.monotonic() + READY_S
        while not (self.folder / "ready").exists():
            if time.monotonic() > deadline or self._server._process.poll() is not None:
                self.end()
                raise RuntimeError(f"{name} was not ready within {READY_S} s")
            time.sleep(0.02)
        self.network = os.readlink(f"/proc/{self.pid}/ns/net")

    def entered(self, *namespaces):
        """Return the beginning of a command that is to run in these namespaces of the node's."""
        return ["nsenter", f"--target={self.pid}", *namespaces, "--"]

    def run(self, *command):
        """Run a short command here, as its root, and return what it printed."""
        owner = [*_as_root(), "--preserve-credentials"] if _as_root() else []
        entered = self.entered(*owner, "--net", "--uts", "--mount")
        done = subprocess.run([*entered, *command], capture_output=True, text=True, timeout=20)
        assert done.returncode == 0, f"{self.name}: {' '.join(command)}: {done.stderr}"
        return done.stdout

    def torchrun(self, processes, script, *args, nnodes=2, options=(), env=None, logs=None):
        """Start ``script`` as ``processes`` ranks of this node and return a ``NodeRun`` at once.

        The nodes of a job meet at the first; ``options`` are torchrun's own.
        """
        logs = logs or RankLogs(processes, within=self.folder)
        worker = system.tethered([sys.executable, "-u", script, *args], logs.path("{rank}"))
        meeting = [f"--nnodes={nnodes}", f"--nproc-per-node={processes}", f"--rdzv-endpoint={NAMES[0]}:29400"]
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--rdzv-backend=c10d", "--rdzv-id=job", *meeting]
        command = system.tethered([*torchrun, *options, *worker[1:]], logs.path("torchrun"))
        own = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "TMPDIR": str(self.temporary)}
        started = self._server.start(
            [*map(str, command)],
            env=dict(os.environ) | own | (env or {}),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        return NodeRun(started, logs)

    def end(self):
        """End every process of this node; wait until they are gone."""
        members = system.family(self.pid)
        self._server.end()
        system.kill(members)

    def processes(self):
        """Return the numbers of all processes in this node's network, however they got there."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                found += [int(process.name)] if os.readlink(process / "ns/net") == self.network else []
            except OSError:  # it has just ended
                continue
        return found


class NodeRun:
    """What torchrun runs on one node: its part of a job."""

    def __init__(self, process, logs):
        self.process, self.logs = process, logs

    @property
    def ranks(self):
        """Return the processes of this node's ranks, in the order of their local ranks."""
        members = [one for one in system.family(self.process.pid) if one.pid != self.process.pid]
        return sorted((one for one in members if one.ppid() == self.process.pid), key=lambda one: one.create_time())

    def kill(self):
        """End torchrun and its ranks at once, as a machine that loses its power does."""
        system.kill(system.family(self.process.pid))

    def told(self):
        """Return all that torchrun and the ranks have printed here."""
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.logs.folder.glob("*.log")))
