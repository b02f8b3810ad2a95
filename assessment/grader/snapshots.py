"""The weights after each epoch of a run that is graded, copied while it goes on: no accuracy is taken on trust.

A script saves into one file over and over, and says in its record how good the weights of each epoch are. Whenever the
record has a row more, the file is copied, so that the accuracies that count can be scored. The folder is a stranger's:
no link in it is followed, nothing but plain files is read, and no more than a limit of bytes.
"""

import os
import stat
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

POLL_S = 0.05
RECORD, WEIGHTS = "metrics.csv", "model.pt"
MOST_RECORD, MOST_ALL = 1_000_000, 1_000_000_000


class Snapshots:
    """Copies, while it is open, what a run saves in ``run_dir`` into ``folder``: ``paths`` by epoch, from 1.

    Not copied is what is larger than ``most`` bytes, all after 1 GB, and weights that were written again before the
    copy was made, as where epochs are very short: then nothing is known of that epoch.
    """

    def __init__(self, run_dir, folder, most):
        self.run_dir, self.folder, self.most = Path(run_dir), Path(folder), most
        self.paths, self._seen, self._bytes = {}, 0, 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()

    def _follow(self):
        while not self._over.wait(POLL_S):
            with suppress(OSError):  # not there yet, or none of what may be read
                self._look()
        with suppress(OSError):
            self._look()

    def _look(self):
        place = os.open(self.run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            with plain(place, RECORD) as (file, facts):
                if facts.st_size > MOST_RECORD:
                    return
                epoch, written = file.read(MOST_RECORD).count(b"\n") - 1, facts.st_mtime_ns
            if epoch <= self._seen:
                return
            self._seen = epoch
            with plain(place, WEIGHTS) as (file, facts):
                if facts.st_mtime_ns > written or facts.st_size > min(self.most, MOST_ALL - self._bytes):
                    return
                content = file.read(self.most)
                if os.fstat(file.fileno()).st_mtime_ns != facts.st_mtime_ns or len(content) != facts.st_size:
                    return  # it is being written again, in place
        finally:
            os.close(place)
        self._bytes += len(content)
        path = self.folder / f"epoch-{epoch}.pt"
        path.write_bytes(content)
        self.paths[epoch] = path


@contextmanager
def plain(place, name):
    """Yield the file ``name`` in the folder with the descriptor ``place``, opened to read, and its facts.

    Raises ``OSError`` where it is a link, a pipe or anything else that is no plain file.
    """
    number = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=place)
    facts = os.fstat(number)
    if not stat.S_ISREG(facts.st_mode):
        os.close(number)
        raise OSError(f"{name} is no plain file")
    with open(number, "rb") as file:
        yield file, facts
