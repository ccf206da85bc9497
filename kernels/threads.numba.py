"""Threads that sleep between calls, so that a kernel's parts run side by side.

A kernel compiled with nogil=True leaves Python's lock while it runs, so ordinary threads run it in parallel.
They wait on a queue, where they use no processor time, and wake within some tens of microseconds; one that
has had nothing to do for IDLE_S ends. The number of threads is the number of parts, and no setting of NumPy's
or Numba's own threads is read or changed.

This text needs no constants in front of it, and is itself put in front of kernels that use it.
"""

# ruff: noqa: ANN001, ANN201, ANN202
import os
import queue
import threading

IDLE_S = 5.0
#: Where to hand work to each thread that waits.
_waiting = []
# A forked child has none of its parent's threads.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_waiting.clear)


def _serve(inbox):
    while True:
        try:
            function, arguments, done = inbox.get(timeout=IDLE_S)
        except queue.Empty:
            try:
                _waiting.remove(inbox)
            except ValueError:
                continue  # taken a moment ago: work is on its way
            return
        failure = None
        try:
            function(*arguments)
        except BaseException as error:
            failure = error
        _waiting.append(inbox)
        del function, arguments  # not to keep arrays alive while asleep
        done.put(failure)


def _hand_out(function, arguments, done):
    try:
        inbox = _waiting.pop()
    except IndexError:
        inbox = queue.SimpleQueue()
        threading.Thread(target=_serve, args=(inbox,), name="kernel", daemon=True).start()
    inbox.put((function, arguments, done))


def run_together(function, parts):
    """Calls function(*part) for every part at the same time, the first one in the calling thread.

    Raises:
        BaseException: What a part raised, after all have ended.
    """
    done = queue.SimpleQueue()
    for part in parts[1:]:
        _hand_out(function, part, done)
    try:
        function(*parts[0])
    finally:
        failures = [done.get() for _ in parts[1:]]
    for failure in failures:
        if failure is not None:
            raise failure
