"""What a script does with the world outside its network: ranks, collectives, what is printed and written."""

import builtins
import json
import os
import sys
from functools import wraps

import torch
import torch.distributed as dist

from assessment.recorder.events import announce

COLLECTIVES = (
    "all_reduce", "broadcast", "barrier", "all_gather", "all_gather_into_tensor", "all_gather_object", "gather",
    "gather_object", "scatter", "scatter_object_list", "reduce", "reduce_scatter", "reduce_scatter_tensor",
    "broadcast_object_list", "all_to_all", "all_to_all_single", "monitored_barrier", "all_reduce_coalesced",
    "send", "recv", "isend", "irecv", "batch_isend_irecv", "new_group", "destroy_process_group",
)  # fmt: skip


def watch(recorder):
    """Begin to watch ranks, collectives and files."""
    watch_environment(recorder)
    watch_collectives(recorder)
    watch_files(recorder)


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


def watch_collectives(recorder):
    """Write down each collective as it is entered, with its size and the script's line."""

    def facts(*args, **_kwargs):
        return {"numel": args[0].numel() if args and torch.is_tensor(args[0]) else None}

    for name in COLLECTIVES:
        if hasattr(dist, name):
            announce(recorder, dist, name, facts, event="collective")
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


def watch_files(recorder):
    """Write down what is printed, and which files are opened for writing."""
    say, save = builtins.print, torch.save
    watched = [os.path.abspath(folder) for folder in json.loads(os.environ.get("LOCKSTEP_WATCHED", "[]"))]

    @wraps(say)
    def printed(*values, file=None, **options):
        if file in (None, sys.stdout):
            recorder.note("print", text=" ".join(map(str, values))[:300], line=recorder.place())
        say(*values, file=file, **options)

    def written(path):
        path = os.path.abspath(os.fsdecode(path))
        if any(path.startswith(folder + os.sep) for folder in watched):
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

    builtins.print, torch.save = printed, saved
    sys.addaudithook(audit)
