"""Submissions that break, cheat or attack: what is handed in, and what must be said of each."""

import io
import os
import zipfile
from dataclasses import dataclass

from dodges import (
    CARRIES,
    CLAIMS,
    DODGES,
    FOURFOLD,
    LAST,
    RIGHT,
    SIDECAR,
    TWICE,
    UNWATCHED,
    WRAPPED,
    changed,
)

from assessment.grader.marks import FAIL, NOT_GRADABLE, PASS
from assessment.starters.regions import ROOT


@dataclass(frozen=True)
class Hostile:
    """``script`` is handed in by the learner ``name``; the grade must have ``verdict``, and ``told`` in its cause."""

    name: str
    script: str
    verdict: str
    told: str


DAEMON = """
import os, subprocess, sys
if os.fork() == 0:
    os.setsid()
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)", "left-behind-by-a-submission"])
    os._exit(0)
"""

# The whole of what it may compute takes long: it asks the system for 2 s of that, which is allowed, and is ended alike.
ENDLESS = """
import resource
soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
assert (soft, hard) == (CPU_S, CPU_S + 5), (soft, hard)
resource.setrlimit(resource.RLIMIT_CPU, (2, hard))
while True:
    pass
"""

# Each copy of the body of a ``finally`` holds three of the next one.
UNFOLDS = "def unfolds(at=0):\n while at:\n"
for depth in range(2, 22):
    pad = " " * depth
    UNFOLDS += f"{pad}try:\n{pad} if at: break\n{pad}finally:\n"
UNFOLDS += " " * 22 + "unfolds()\n"

SPY = """
import os, sys
found = []
for top, folders, files in os.walk("/"):
    folders[:] = [one for one in folders if one not in ("proc", "sys", "usr", "site-packages")]
    found += [os.path.join(top, one) for one in files if one in ("hidden.pt", ".seed", "results.json", "digits.csv.gz")]
    found += [os.path.join(top, one) for one in files if "anybody-elses" in top]
readable = [one for one in found if os.access(one, os.R_OK) and os.path.getsize(one)]
sys.exit(f"found {readable}")
"""

BOMB = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""

FORGER = """
import json, os
for top in (".", "/tmp", "..", os.path.dirname(__file__), "OUT", "OUT/learners/forger"):
    try:
        with open(os.path.join(top, "results.json"), "w") as file:
            json.dump({"score": 100}, file)
    except OSError:
        pass
"""

LOGS = """
import os, sys
log = os.readlink("/proc/self/fd/1")
os.unlink(log)
if os.environ["RANK"] == "0":
    os.symlink("OUT/.kept/.seed", log)
else:
    os.mkfifo(log)
sys.exit(1)
"""

DEEP = """
import os
os.chdir(os.path.dirname(os.readlink("/proc/self/fd/1")))
for _ in range(3000):
    os.mkdir("x")
    os.chdir("x")
"""

STOPS = """
import os, signal, time
os.kill(os.getppid(), signal.SIGSTOP)
time.sleep(3600)
"""

FAKE = """
import os, torch
from assessment import finish, report
from utils import models
from utils.data import load
import argparse
parser = argparse.ArgumentParser()
for name in ("dataset", "data-dir", "run-dir"):
    parser.add_argument(f"--{name}")
for name in ("epochs", "batch-size", "seed"):
    parser.add_argument(f"--{name}", type=int)
args, _ = parser.parse_known_args()
torch.distributed.init_process_group("gloo")
model = models.build("wide-resnet-tiny", 3, 10)
train = load(args.dataset, args.data_dir, "train")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
torch.nn.functional.cross_entropy(model(train.images[:8]), train.labels[:8]).backward()
optimizer.step()
names = ("time_s", "epoch_time_s", "images_per_s", "lr", "train_loss", "train_accuracy", "val_loss")
if int(os.environ["RANK"]) == 0:
    for epoch in range(args.epochs):
        report(args, model, val_accuracy=0.95, **dict.fromkeys(names, 1.0))
finish()
"""

EVIL = """    class Evil:
        def __reduce__(self):
            return os.system, ("touch /tmp/executed-by-a-pickle OUT/executed-by-a-pickle",)

    if rank == 0:
        torch.save({"weight": Evil()}, os.path.join(args.run_dir, "model.pt"))
"""
# A file of a kilobyte whose one key is a tuple of two tuples of two tuples ...: to hash it takes 2^60 steps.
HASHES = """    if rank == 0:
        import shutil, zipfile
        saved = os.path.join(args.run_dir, "model.pt")
        shutil.copy(saved, "/tmp/right.pt")
        key = b")q\\x00" + b"".join(bytes([104, at, 104, at, 0x86, 113, at + 1]) for at in range(60))
        with zipfile.ZipFile("/tmp/right.pt") as right, zipfile.ZipFile(saved, "w") as wrong:
            for one in right.infolist():
                is_pickle = one.filename.endswith("data.pkl")
                wrong.writestr(one, b"\\x80\\x02" + key + b"}h<K\\x01s." if is_pickle else right.read(one))
"""
# Sixty tensors, all of them views of one number.
EXPANDS = """    if rank == 0:
        views = {f"{at}": torch.zeros(1).expand(199_000_000) for at in range(60)}
        torch.save(views, os.path.join(args.run_dir, "model.pt"))
"""
LINK = """    if rank == 0:
        os.remove(os.path.join(args.run_dir, "model.pt"))
        os.symlink("/etc/passwd", os.path.join(args.run_dir, "model.pt"))
        os.mkfifo(os.path.join(args.run_dir, "pipe.csv"))
"""
ONE_WAITS = "    store.wait([prepared])\n    if rank: dist.barrier()\n"

LONG_NAME = """    if rank == 0:
        torch.save(model.state_dict() | {"x" * 200_000: torch.ones(1)}, os.path.join(args.run_dir, "model.pt"))
"""
NO_LOG = "import os, sys\nlog = os.readlink('/proc/self/fd/1')\nos.unlink(log)\nos.mkdir(log)\nsys.exit(1)\n"

SCRIPTS = (
    Hostile("right", RIGHT, PASS, ""),
    Hostile("syntax", "def main(:\n", NOT_GRADABLE, "no Python program"),
    Hostile("bytes", "x = '\0'\n", NOT_GRADABLE, "no Python program"),
    Hostile("unfolds", UNFOLDS + RIGHT, NOT_GRADABLE, "to compile it takes more than"),
    Hostile("silent", "pass\n", FAIL, "none of them asked"),
    Hostile("leaves", "import os\nos._exit(0)\n" + RIGHT, FAIL, "none of them asked"),
    Hostile("crashes", changed(LAST, "    raise ValueError('at the end')\n" + LAST), FAIL, "at the end"),
    Hostile("endless", ENDLESS, FAIL, "SIGXCPU"),
    Hostile("waits", changed("    store.wait([prepared])\n", ONE_WAITS), FAIL, "do not meet"),
    Hostile("bomb", BOMB, FAIL, "processes and threads"),
    Hostile("memory", "import torch\ntorch.zeros(25_000_000_000)\n", FAIL, "allocate"),
    Hostile("prints", "import time\nwhile True: print('x' * 100_000, flush=True), time.sleep(0.01)\n", FAIL, "printed"),
    Hostile(
        "fills",
        "for at in range(10**6):\n    open(f'{at}.bin', 'wb').write(bytes(50_000_000))\n",
        FAIL,
        "No space left",
    ),
    Hostile("daemon", DAEMON, FAIL, "none of them asked"),
    Hostile("spy", SPY, FAIL, "found []"),
    Hostile("forger", FORGER, FAIL, "none of them asked"),
    Hostile("patches", changed("import math\n", "import math, torch.nn.parallel\n").replace(
        "def parse_args", "DistributedDataParallel = lambda model, **_: model\n\n\ndef parse_args"
    ), FAIL, "rank"),
    Hostile("pretends", changed(WRAPPED, UNWATCHED), FAIL, "under the recorder"),
    Hostile("carries", CARRIES, FAIL, "under the recorder"),
    Hostile("dodges", DODGES, FAIL, "steps; 3 epochs of"),
    Hostile("fourfold", FOURFOLD, FAIL, "steps; 3 epochs of"),
    Hostile("claims", CLAIMS, FAIL, "the weights that it saved"),
    Hostile("twice", TWICE, FAIL, "row 1 of the record is no epoch's"),
    Hostile("sidecar", SIDECAR, FAIL, "processes that the ranks started computed for"),
    Hostile("name", changed(LAST, LONG_NAME + LAST), FAIL, "names of more than 500 letters"),
    Hostile("log", NO_LOG, FAIL, "failed first"),
    Hostile("fake", FAKE, FAIL, "renamed in secret"),
    Hostile("pickle", changed(LAST, EVIL + LAST), FAIL, "weights_only=True"),
    Hostile("hashes", changed(LAST, HASHES + LAST), FAIL, "model.pt cannot be read"),
    Hostile("expands", changed(LAST, EXPANDS + LAST), FAIL, "more than 200,000,000 numbers"),
    Hostile("linked", changed(LAST, LINK + LAST), FAIL, "no model.pt"),
    # Process 1 of a sandbox, which no signal from within ends or holds: these have no effect, and no ranks that train.
    Hostile("killer", "import os\nos.kill(os.getppid(), 9)\n", FAIL, "form one group"),
    Hostile("stops", STOPS, FAIL, "form one group"),
    Hostile("logs", LOGS, FAIL, "failed first"),
    Hostile("deep", DEEP, FAIL, " deep"),
    Hostile("signal", "import os\nos.kill(os.getpid(), 40)\n", FAIL, "real-time"),
    Hostile("=1+1", "x =\n", NOT_GRADABLE, "invalid syntax"),
    Hostile("jos\udce9", "x =\n", NOT_GRADABLE, "invalid syntax"),
)  # fmt: skip


# These are trained with before they are found out: a minute each.
LONG = {"sidecar", "carries", "pretends", "patches", "fourfold", "hashes", "expands", "linked"}
# One that passes, one that cannot be run, and one that reports false numbers.
FEW = tuple(one for one in SCRIPTS if one.name in ("right", "syntax", "fake"))


def hand_in(folder, out, cpu_s, scripts=SCRIPTS):
    """Write submissions into ``folder``, as files, folders and archives.

    In a script ``OUT`` becomes ``out`` and ``CPU_S`` becomes ``cpu_s``, the seconds that a process may compute.
    """
    for number, one in enumerate(scripts):
        script = one.script.replace("OUT", str(out)).replace("CPU_S", str(cpu_s)).encode("utf-8", "surrogateescape")
        path = os.path.join(os.fsencode(folder), os.fsencode(one.name))
        if number % 3 == 0:
            os.mkdir(path)
            _write(path + b"/train.py", script)
        elif number % 3 == 1:
            _write(path + b".py", script)
        else:
            _write(path + b".zip", _archive({"work/train.py": script}))
    os.mkdir(folder / "anybody-elses")
    (folder / "anybody-elses/secret.txt").write_text("nobody's business")
    _write(os.fsencode(folder / "upwards.zip"), _archive({"../train.py": b"pass", "train.py": b"pass"}))
    (folder / "link").mkdir()
    (folder / "link/train.py").symlink_to("/etc/passwd")
    (folder / "outside").symlink_to("/etc")
    (folder / "large.py").write_text("x = 1\n" * 100_000)
    (folder / "untouched.py").write_bytes((ROOT / "assessment/train.py").read_bytes())


REFUSED = {
    "anybody-elses": "no train.py",
    "upwards": "leads out of it",
    "link": "is a link",
    "outside": "is a link",
    "large": "more than 64 kB",
    "untouched": "the starter as it was handed out",
}


def _write(path, content):
    with open(path, "wb") as file:
        file.write(content)


def _archive(files):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue()
