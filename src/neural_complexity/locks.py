"""Locks of files and folders, which end with the process that has them, however it ends."""

import fcntl
import os
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["LOCK", "lock_file", "lock_folder", "remove_stale_lock"]

LOCK = ".lock"  # the file, in a locked folder, that says who has it


def lock_file(handle: int) -> bool:
    """Locks an open file until it is closed; returns whether nobody else has locked it.

    Whoever opens it again, be it in this process, is somebody else.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Keeps a folder, which is made if need be, for one run; nothing of the lock is left behind.

    Raises:
        BlockingIOError: If another run has it, of this process or of another one that lives.
    """
    Path(os.path.realpath(folder)).mkdir(parents=True, exist_ok=True)  # also where a link leads
    handle = _open_lock(folder)
    try:
        with suppress(OSError):  # a full disk: the lock holds, but others are not told whose it is
            os.ftruncate(handle, 0)
            now = time.strftime("%Y-%m-%d %H:%M:%S")
            os.write(handle, f"process {os.getpid()}, since {now}".encode())
        yield
    finally:
        if os.fstat(handle).st_nlink:  # unless the folder was deleted, and perhaps made again
            # Before it is unlocked: whoever comes next makes a new one.
            (folder / LOCK).unlink(missing_ok=True)
        os.close(handle)


def remove_stale_lock(folder: Path) -> None:
    """Removes the lock that a killed run left in a folder, if no living process has it."""
    with suppress(OSError):  # there is none, or the folder is not ours to change
        handle = os.open(folder / LOCK, os.O_RDWR)
        try:
            if lock_file(handle) and os.fstat(handle).st_nlink:
                (folder / LOCK).unlink(missing_ok=True)
        finally:
            os.close(handle)


def _open_lock(folder: Path) -> int:
    """Returns the handle of a lock file that this run has locked."""
    while True:
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            locked, holder = lock_file(handle), os.pread(handle, 100, 0).decode(errors="replace")
        except OSError as error:
            warnings.warn(
                f"{folder} cannot be locked ({error}): make sure that one run has it at a time",
                stacklevel=4,
            )
            return handle
        if locked and os.fstat(handle).st_nlink:
            return handle
        os.close(handle)
        if not locked:
            got = f"another by {holder or 'a process that has just begun'}"
            raise BlockingIOError(f"{folder} must be used by one run at a time, got {got}")
        # Its holder deleted it after it was opened here: it keeps nobody out any more.
