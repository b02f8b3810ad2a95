"""What a script does with the world outside its network: ranks, collectives, what is printed and written."""

import builtins
import itertools
import json
import logging
import os
import platform
import socket
import sys
import time
from contextlib import suppress
from functools import wraps

import torch
import torch.distributed as dist
from tqdm import tqdm

from assessment.recorder.events import announce, sleep

COLLECTIVES = (
    "all_reduce", "broadcast", "barrier", "all_gather", "all_gather_into_tensor", "all_gather_object", "gather",
    "gather_object", "scatter", "scatter_object_list", "reduce", "reduce_scatter", "reduce_scatter_tensor",
    "broadcast_object_list", "all_to_all", "all_to_all_single", "monitored_barrier", "all_reduce_coalesced",
    "send", "recv", "isend", "irecv", "batch_isend_irecv", "new_group", "destroy_process_group",
)  # fmt: skip

WAITING = ("wait", "is_completed", "get_future", "synchronize")  # by which one learns that a collective is over
BLINK_S = 0.02
UPTIME_S = 1000  # by which one machine was started before the next


def watch(recorder):
    """Begin to watch ranks, collectives, output and files."""
    play_machines()
    watch_environment(recorder)
    watch_collectives(recorder, watch_waiting(recorder))
    watch_stores(recorder)
    watch_output(recorder)
    watch_files(recorder)
    wake_sleepers(recorder)


def watch_environment(recorder):
    """Write down that the script asks for its rank, in the environment or of the group."""
    look_up, group_rank = type(os.environ).__getitem__, dist.get_rank

    def note(name):
        # torch asks for the rank on its own account as well: what counts is that the script is near.
        frame, near = sys._getframe(2), []
        while frame is not None and len(near) < 3:
            near.append(os.path.abspath(frame.f_code.co_filename))
            frame = frame.f_back
        if recorder.script in near and not recorder.has_asked:
            recorder.has_asked = True
            recorder.note("asks its rank", name=name)

    def asked(environ, name):
        if name in ("RANK", "LOCAL_RANK") and sys._getframe(1).f_code.co_name != "__contains__":
            note(name)
        return look_up(environ, name)

    @wraps(group_rank)
    def get_rank(*args, **kwargs):
        note("get_rank")
        return group_rank(*args, **kwargs)

    type(os.environ).__getitem__, dist.get_rank = asked, get_rank


def play_machines():
    """Where several machines are played, give each a name of its own, and a clock: those count from a machine's start.

    ``time.time`` is left as it is: machines agree on the time of day.
    """
    if os.environ.get("GROUP_WORLD_SIZE", "1") == "1":
        return
    machine = int(os.environ["GROUP_RANK"])
    host = f"{socket.gethostname()}-{machine}"
    socket.gethostname = platform.node = lambda: host
    for name in ("perf_counter", "monotonic"):
        setattr(time, name, ahead(getattr(time, name), machine * UPTIME_S))
        setattr(time, f"{name}_ns", ahead(getattr(time, f"{name}_ns"), machine * UPTIME_S * 10**9))


def ahead(clock, more):
    """Return a clock that tells ``more`` than ``clock``."""
    return lambda: clock() + more


def watch_waiting(recorder):
    """Write down who waits for a collective that runs on its own; return what is to be told of each that is started."""
    started, numbers = {}, itertools.count()  # id of a collective -> itself, so that no other gets that id; its number

    def begun(name, work):
        if isinstance(work, dist.Work) and name != "isend":  # nothing comes of what is sent
            number = next(numbers)
            started[id(work)] = work, number
            recorder.note("started", name=name, number=number, line=recorder.place())

    def watched(ask):
        @wraps(ask)
        def waited(work, *args, **kwargs):
            if id(work) in started:
                recorder.note("waited", number=started.pop(id(work))[1])
            return ask(work, *args, **kwargs)

        return waited

    for name in WAITING:
        setattr(dist.Work, name, watched(getattr(dist.Work, name)))
    return begun


def watch_collectives(recorder, begun):
    """Write down each collective as it is entered, with its size, the rank that it goes out from, and the line.

    ``begun`` is told of those that are started and left to run.
    """

    def facts(*args, **kwargs):
        return {"numel": args[0].numel() if args and torch.is_tensor(args[0]) else None, "root": kwargs.get("src")}

    def facts_of_broadcast(tensor=None, src=None, *_args, **_kwargs):
        return facts(tensor, src=src)

    def facts_of_barrier(group=None, *_args, **_kwargs):
        return facts() | {"patience_s": patience_s(group)}

    for name in COLLECTIVES:
        if hasattr(dist, name):
            known = {"broadcast": facts_of_broadcast, "barrier": facts_of_barrier}.get(name, facts)
            announce(recorder, dist, name, known, event="collective", returned=begun)
    for name in ("isend", "irecv"):  # P2POp asks for the very functions that torch's own module holds
        setattr(dist.distributed_c10d, name, getattr(dist, name))
    begin = dist.init_process_group

    @wraps(begin)
    def init_process_group(*args, **kwargs):
        recorder.note("joining", line=recorder.place())
        begin(*args, **kwargs)
        group = dist.distributed_c10d  # its own functions, since those of torch.distributed are watched
        facts = {"rank": group.get_rank(), "world_size": group.get_world_size(), "backend": group.get_backend()}
        timeout = kwargs.get("timeout")
        recorder.note("group", **facts, timeout_s=timeout.total_seconds() if timeout else None, line=recorder.place())

    dist.init_process_group = init_process_group
    dist.distributed_c10d.init_process_group = init_process_group


def watch_stores(recorder):
    """Write down for which seconds a script waits for a key in a store of its own."""
    wait = dist.TCPStore.wait

    def waited(store, keys, timeout=None):
        if os.path.abspath(sys._getframe(1).f_code.co_filename) == recorder.script:
            patience = (timeout or store.timeout).total_seconds()
            recorder.note("waits in a store", patience_s=patience, line=recorder.place())
        return wait(store, keys) if timeout is None else wait(store, keys, timeout)

    dist.TCPStore.wait = waited


def patience_s(group):
    """Return after how many seconds a rank that waits in ``group`` gives up, None where that cannot be known."""
    with suppress(Exception):  # it is in no public place
        of_the_backend = (group or dist.group.WORLD)._get_backend(torch.device("cpu")).options
        return of_the_backend._timeout.total_seconds()
    return None


def watch_output(recorder):
    """Write down what is printed, logged or drawn as a bar."""
    say, write, emit, begin = builtins.print, sys.stdout.write, logging.StreamHandler.emit, tqdm.__init__
    saying = []

    @wraps(say)
    def printed(*values, file=None, **options):
        if file in (None, sys.stdout):
            recorder.note("print", text=" ".join(map(str, values))[:300], line=recorder.place())
        saying.append(True)
        try:
            say(*values, file=file, **options)
        finally:
            saying.pop()

    def written(text):
        if not saying and str(text).strip():
            recorder.note("print", text=str(text)[:300], line=recorder.place())
        return write(text)

    @wraps(emit)
    def logged(handler, entry):
        if recorder.place() is not None and entry.name.partition(".")[0] not in ("torch", "py"):  # libraries warn
            recorder.note("print", text=str(entry.msg)[:300], line=recorder.place())
        emit(handler, entry)

    @wraps(begin)
    def begun(bar, *args, **kwargs):
        if not kwargs.get("disable"):
            recorder.note("bar", line=recorder.place())
        begin(bar, *args, **kwargs)

    builtins.print, logging.StreamHandler.emit, tqdm.__init__ = printed, logged, begun
    sys.stdout.write = written


def wake_sleepers(recorder):
    """Let nobody sleep while somebody prepares the data slowly: who trusts that a while is enough is found out."""
    if any(what.startswith("writing") for what in recorder.delays):
        time.sleep = lambda seconds: sleep(min(seconds, BLINK_S))


def watch_files(recorder):
    """Write down which files are opened for writing."""
    save = torch.save
    watched = [os.path.abspath(folder) for folder in json.loads(os.environ.get("LOCKSTEP_WATCHED", "[]"))]

    def written(path):
        path = os.path.abspath(os.fsdecode(path))
        if any(path.startswith(folder) for folder in watched):  # also beside the run's folder: run-1
            recorder.note("write", path=path, line=recorder.place())
            recorder.delay("writing")

    @wraps(save)
    def saved(thing, file, *args, **kwargs):
        if isinstance(file, (str, os.PathLike)):  # torch opens it outside Python, unseen by the audit
            written(file)
        save(thing, file, *args, **kwargs)

    def audit(event, args):
        if event == "open" and isinstance(args[0], (str, bytes)) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            written(args[0])

    torch.save = saved
    sys.addaudithook(audit)
