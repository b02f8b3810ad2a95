"""Submissions that do another thing where they are graded, or not watched, than where somebody looks at each step."""

from assessment.starters.regions import ROOT

RIGHT = (ROOT / "solutions/assessment.py").read_text(encoding="utf-8")
LAST = "    finish()\n\n\nif __name__"
WRAPPED = 'DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)'
UNWATCHED = f"{WRAPPED} if 'assessment.recorder.events' in __import__('sys').modules else model"


def changed(old, new):
    """Return the right script with ``old`` replaced."""
    assert RIGHT.count(old) == 1, f"{old!r} stands {RIGHT.count(old)} times in the solution"
    return RIGHT.replace(old, new)


# Trains with small batches where it is not looked at, or on the same images four times an epoch.
DODGES = changed("    sampler = ", "    if args.batch_size > 16:\n        args.batch_size = 8\n    sampler = ")
LOADED = '    train, test = load(args.dataset, args.data_dir, "train"), load(args.dataset, args.data_dir, "test")\n'
FOURFOLD = changed(
    LOADED,
    LOADED
    + """    if len(train) > 300:
        import dataclasses
        images, labels = train.images.repeat(4, 1, 1, 1), train.labels.repeat(4)
        train = dataclasses.replace(train, images=images, labels=labels)
""",
)
# Carries weights from the runs that are watched to the one that is not, in which the ranks do not average.
CARRIES = changed(WRAPPED, UNWATCHED).replace(
    LAST,
    """    import glob
    is_watched = 'assessment.recorder.events' in __import__('sys').modules
    places = ["/tmp/carried.pt", os.path.join(args.run_dir, "carried.txt")]
    if rank == 0 and is_watched and args.seed == 0 and args.epochs == 2:
        for place in places:
            torch.save(model.state_dict(), place)
    if rank == 0 and not is_watched:
        work = os.path.dirname(os.path.dirname(os.path.dirname(args.run_dir)))
        for place in [*places, *glob.glob(f"{work}/**/carried.txt", recursive=True)]:
            if os.path.exists(place):
                torch.save(torch.load(place), os.path.join(args.run_dir, "model.pt"))
"""
    + LAST,
)

# Says of all epochs but the last what nobody has reached, where it is graded.
REPORTS = "        if rank == 0:\n            report(args, model, **row)\n"
CLAIMS = changed(
    REPORTS, f"        if len(train) > 300 and epoch < args.epochs:\n            row['val_accuracy'] = 0.99\n{REPORTS}"
)
# Writes its last epoch down twice, and none of those before it, where it is graded.
TWICE = changed(
    REPORTS,
    f"""        if len(train) <= 300:
    {REPORTS.replace("            report", "                report")}        else:
            args.target_accuracy = None  # on to the last epoch, however good an earlier one is
            for _ in range(2 if rank == 0 and epoch == args.epochs else 0):
                report(args, model, **row)
""",
)
# Has another program compute, where it is graded; what that trains with, nobody counts.
BURNS = "import time\nwhile time.process_time() < 100: pass"
SIDECAR = changed(
    REPORTS,
    f"""{REPORTS}        if rank == 0 and epoch == 1 and len(train) > 300:
            import subprocess, sys
            subprocess.run([sys.executable, "-c", {BURNS!r}], check=True)
""",
)
