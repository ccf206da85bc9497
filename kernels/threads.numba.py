"""A crew: threads that take jobs until none is left. They are NumPy's own where its OpenBLAS lends them.

    def gemm(a, b, c, m, n, k):                          the caller's side, Python
        run_together(THREADS, c.dtype, (address_of(a), ..., m, n, k))

    def work(crew, member, like, words):                 every member's side, compiled, defined by the kernel
        job = take(crew, 0)                              that this text is put in front of
        while job < jobs:
            ...
            finish(crew, 0)
            job = take(crew, 0)
        if member == 0:                                  the caller returns when all jobs are done
            wait_until(crew, 0, jobs)

Waking a thread takes time, and the system may suspend one for longer than a call takes. So no member waits for
a thread, only for jobs that a thread has taken: a late thread finds fewer jobs. The caller is member 0; it
takes jobs like the others.

OpenBLAS's threads spin for tens of milliseconds after a product, and would take half of every core from other
threads: a call in turn with products of NumPy would take up to three times as long. So a call borrows them
(`TEAM`), unless they are fewer than it asks for. Otherwise it has threads of its own.

A waiting thread of ours spins for a fraction of a millisecond, because the next call may follow at once, then
sleeps in the system until it is called, and ends after IDLE_S. Threads wait in compiled code, without Python's
lock. Waking them costs Python nothing and the caller little, because each awake thread wakes two more. No
setting of NumPy's or Numba's threads is changed.

Members share `crew`, an array of 64-bit words. Each word that several members write is on a cache line of its
own: otherwise every write would evict the line from the caches of all others.

This text needs no constants in front of it, and is itself put in front of kernels that use it. It needs Linux:
the semaphores of other systems differ.
"""

# ruff: noqa: ANN001, ANN201, ANN202, F821
import collections
import contextlib
import ctypes
import os
import pathlib
import platform
import threading

import numpy as np
from numba import carray, from_dtype, njit, types
from numba.core import cgutils
from numba.core.cgutils import get_or_insert_function, ir
from numba.extending import intrinsic

IDLE_S = 5
#: How often a thread reads a word before it sleeps: for about 50 microseconds if it waits for jobs, for about
#: 200 if it waits for the next call, because waking a thread on a virtual machine takes longer than that.
SPINS, SPINS_BETWEEN_CALLS = 2000, 8000
NAP_US = 20
#: From this size on NumPy requests huge pages; unused ones cost nothing.
HUGE_BYTES = 1 << 22
#: For functions that only compiled code calls: they get no Python wrapper.
INNER = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "error_model": "numpy"}
#: For functions that compiled code calls by their address (`entry_of`, `call_at`): they are compiled apart from
#: it, so that no config compiles again what another has compiled.
APART = {"cache": True, "nogil": True, "no_cpython_wrapper": True, "error_model": "numpy"}

WORD, HALF_WORD = ir.IntType(64), ir.IntType(32)
LINE, LINE_BYTES = 16, 128  # as some CPUs fetch two lines of 64 bytes at once
# Lines of a crew. OPEN: the number of the call that may be joined, or 0. INSIDE: threads that are in it.
# ASLEEP: threads that wait for a token of the semaphore. ALIVE: threads. CALLS: calls so far. WORDS, two lines:
# the caller's arguments. From FIRST_COUNT, two for each kind of jobs: how many were taken, how many finished.
OPEN, INSIDE, ASLEEP, ALIVE, SEMAPHORE, CALLS, WORDS = range(7)
FIRST_COUNT = WORDS + 2
KINDS = 2
LINES = FIRST_COUNT + 2 * KINDS


# Words that several threads read and write. The compiler moves no access across one of these.


def _line(builder, crew, number):
    """Address of the first word of a line."""
    return builder.gep(crew, [builder.mul(number, number.type(LINE))])


@intrinsic
def read_word(context, crew, line):
    """The latest value of the word."""

    def generate(target, builder, signature, args):
        return builder.load_atomic(_line(builder, *args), "seq_cst", 8)

    return types.int64(crew, types.intp), generate


@intrinsic
def write_word(context, crew, line, value):
    """Writes the word."""

    def generate(target, builder, signature, args):
        builder.store_atomic(args[2], _line(builder, *args[:2]), "seq_cst", 8)
        return target.get_dummy_value()

    return types.void(crew, types.intp, types.int64), generate


@intrinsic
def add_to_word(context, crew, line, value):
    """Adds to the word, and returns its value before."""

    def generate(target, builder, signature, args):
        return builder.atomic_rmw("add", _line(builder, *args[:2]), args[2], "seq_cst")

    return types.int64(crew, types.intp, types.int64), generate


@intrinsic
def take_from_word(context, crew, line):
    """Subtracts 1 from the word unless it is 0; True if it was not."""

    def generate(target, builder, signature, args):
        before = builder.atomic_rmw("usub_sat", _line(builder, *args), WORD(1), "seq_cst")
        return builder.icmp_signed("!=", before, WORD(0))

    return types.boolean(crew, types.intp), generate


@intrinsic
def pause(context):
    """Leaves the core to others for some cycles, in a loop that polls a word."""
    name, *numbers = {"x86_64": ("llvm.x86.sse2.pause",), "aarch64": ("llvm.aarch64.hint", 1)}.get(
        platform.machine(), ("llvm.donothing",)
    )

    def generate(target, builder, signature, args):
        hint = ir.FunctionType(ir.VoidType(), [HALF_WORD] * len(numbers))
        function = get_or_insert_function(builder.module, hint, name)
        builder.call(function, [HALF_WORD(number) for number in numbers])
        return target.get_dummy_value()

    return types.void(), generate


@intrinsic
def crew_at(context, address):
    """The words of a crew from their address."""
    words = types.CPointer(types.int64)

    def generate(target, builder, signature, args):
        return builder.inttoptr(args[0], WORD.as_pointer())

    return words(types.intp), generate


@intrinsic
def words_at(context, place):
    """The memory at the address of an element, as words."""
    words = types.CPointer(types.int64)

    def generate(target, builder, signature, args):
        return builder.bitcast(args[0], WORD.as_pointer())

    return words(place), generate


@intrinsic
def place_at(context, address, like):
    """The memory at an address, as elements of the dtype of an array."""

    def generate(target, builder, signature, args):
        return builder.inttoptr(args[0], target.get_value_type(signature.return_type))

    return types.CPointer(like.dtype)(types.intp, like), generate


@intrinsic
def call_at(context, address, arguments):
    """Calls the function at an address (`entry_of`) with the values of a tuple; it returns nothing."""

    def generate(target, builder, signature, args):
        values = cgutils.unpack_tuple(builder, args[1], len(arguments))
        result = target.get_value_type(types.none)
        kind = ir.FunctionType(result, [value.type for value in values])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), values)
        return target.get_dummy_value()

    return types.void(address, arguments), generate


_sem_post = types.ExternalFunction("sem_post", types.int32(types.intp))
_sem_timedwait = types.ExternalFunction("sem_timedwait", types.int32(types.intp, types.intp))
_clock_gettime = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.intp))
_usleep = types.ExternalFunction("usleep", types.int32(types.int32))


# Jobs.


def _count(kind, finished):
    """The line that counts the jobs of a kind."""
    return WORD(FIRST_COUNT + 2 * kind.literal_value + finished)


@intrinsic(prefer_literal=True)
def take(context, crew, kind):
    """The number of the next job of a kind, from 0 on; the caller checks whether it is beyond the last."""

    def generate(target, builder, signature, args):
        return builder.atomic_rmw("add", _line(builder, args[0], _count(kind, 0)), WORD(1), "seq_cst")

    return types.int64(crew, kind), generate


@intrinsic(prefer_literal=True)
def finish(context, crew, kind):
    """Reports that a job is done."""

    def generate(target, builder, signature, args):
        builder.atomic_rmw("add", _line(builder, args[0], _count(kind, 1)), WORD(1), "seq_cst")
        return target.get_dummy_value()

    return types.void(crew, kind), generate


@njit(**INNER)
def wait_until(crew, kind, finished):
    """Waits until a given number of jobs of a kind are done."""
    spins = 0
    while read_word(crew, FIRST_COUNT + 2 * kind + 1) < finished:
        spins += 1
        if spins < SPINS:
            pause()
        else:
            _usleep(NAP_US)


@intrinsic(prefer_literal=True)
def word(context, crew, number):
    """One of the whole numbers that the caller passed."""

    def generate(target, builder, signature, args):
        return builder.load(builder.gep(args[0], [WORD(WORDS * LINE + number.literal_value)]))

    return types.int64(crew, number), generate


# Calls.


@njit(**INNER)
def _next_call(crew, semaphore, until, last):
    """Waits for a call after the last and joins it; 0 if none came for IDLE_S.

    A member that sleeps is counted in ASLEEP first, then looks once more. Whoever takes it from the count owes
    it a token of the semaphore, so a token is neither lost nor left over. `until` is room for a time.
    """
    spins, counted, time = 0, False, crew_at(until)
    while True:
        call = read_word(crew, OPEN)
        if call != 0 and call != last:
            add_to_word(crew, INSIDE, 1)
            # No data of the call may be used before this check: it may have ended in between.
            if read_word(crew, OPEN) == call and (not counted or take_from_word(crew, ASLEEP)):
                return call
            add_to_word(crew, INSIDE, -1)
        spins += 1
        if spins < SPINS_BETWEEN_CALLS:
            pause()
        elif not counted:
            add_to_word(crew, ASLEEP, 1)
            counted = True
        else:
            _clock_gettime(0, until)
            time[0] += IDLE_S
            if _sem_timedwait(semaphore, until) != 0 and take_from_word(crew, ASLEEP):
                return 0
            spins, counted = 0, False


@njit(**INNER)
def _begin(crew, words):
    for number in range(len(words)):
        crew[WORDS * LINE + number] = words[number]
    for count in range(2 * KINDS):
        write_word(crew, FIRST_COUNT + count, 0)


@njit(cache=True, error_model="numpy")
def _prepare(address, words):
    """Begins a call of borrowed threads."""
    _begin(crew_at(address), words)


@njit(**APART)
def _join(pair):
    """What a borrowed thread runs, given where the crew's address and the member's number lie.

    The dtype that the address is declared to be of is what the crew works on.
    """
    words = words_at(pair)
    work(crew_at(words[0]), words[1], carray(pair, (0,)))


@njit(cache=True, nogil=True, error_model="numpy")
def _take_part(address, member, like, words):
    """The work of a member: the caller works on one call, a thread on each until no more calls come."""
    crew, semaphore, until = (
        crew_at(address),
        address + LINE_BYTES * SEMAPHORE,
        address + LINE_BYTES * (LINES + member),
    )
    call = 0
    if member == 0:
        _begin(crew, words)
        call = add_to_word(crew, CALLS, 1) + 1
        write_word(crew, OPEN, call)
    else:
        add_to_word(crew, ALIVE, 1)
        call = _next_call(crew, semaphore, until, 0)
    while call:
        for _ in range(2):
            if take_from_word(crew, ASLEEP):
                _sem_post(semaphore)
        work(crew, member, like)
        if member == 0:
            write_word(crew, OPEN, 0)
            while read_word(crew, INSIDE) > 0:
                pause()
            return
        add_to_word(crew, INSIDE, -1)
        call = _next_call(crew, semaphore, until, call)
    add_to_word(crew, ALIVE, -1)


_libc = ctypes.CDLL(None)


def _team():
    """What runs a function on threads of NumPy's OpenBLAS, and how many these are; None if it lends none."""
    maps = pathlib.Path("/proc/self/maps")
    words = maps.read_text().split() if maps.exists() else ()
    for path in sorted({word for word in words if "openblas" in word}, key=lambda path: "numpy" not in path):
        with contextlib.suppress(OSError, AttributeError, ValueError):
            library = ctypes.CDLL(path)
            library.gotoblas_pthread.argtypes = ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int
            return library.gotoblas_pthread, ctypes.c_int.in_dll(library, "blas_cpu_number")
    return None


TEAM = _team()


class Crew:
    """The threads of one call at a time, and their shared memory.

    Attributes:
        address: Of its words.
        threads: All but the caller's; None in the place of one that has not begun.
        like: An empty array of the dtype that it works on.
        space: Memory that members need for the call; kept, as the system would clear it anew for every call.
        pairs: For each borrowed thread the address, and its number as a member.
        join: Address of what a borrowed thread runs; 0 until some are borrowed.
    """

    def __init__(self, threads, dtype) -> None:
        room = np.zeros((LINES + threads + 1) * LINE, np.int64)
        self._words = room[-room.ctypes.data % LINE_BYTES // 8 :]
        self.address, self.like, self.space = self._words.ctypes.data, np.empty(0, dtype), room[:0]
        self.threads, self.join = [None] * (threads - 1), 0
        self.pairs = np.array([(self.address, member) for member in range(threads)], np.int64)
        self._caller_core = -1
        _libc.sem_init(ctypes.c_void_p(self.address + LINE_BYTES * SEMAPHORE), 0, 0)

    def keep_clear(self):
        """Keeps the threads off the caller's core.

        A thread that is woken there waits for the caller to be put aside, some milliseconds, while another core
        may be idle: the system looks for one only now and then.
        """
        core = _libc.sched_getcpu()
        if core == self._caller_core:
            return
        self._caller_core, allowed = core, os.sched_getaffinity(0)
        for thread in self.threads:
            if thread is not None and thread.native_id is not None and len(allowed) > 1:
                with contextlib.suppress(OSError):  # it has ended
                    os.sched_setaffinity(thread.native_id, allowed - {core})

    def borrow(self, words):
        """Works on a call with threads of OpenBLAS, the caller among them."""
        if not self.join:
            self.join = entry_of(_join, (place_of(self.like.dtype),))
        _prepare(self.address, words)
        TEAM[0](len(self.pairs), self.join, self.pairs.ctypes.data, self.pairs.strides[0])

    def is_empty(self):
        """True if no thread waits for a call."""
        return self._words[ALIVE * LINE] == 0

    def reserve(self, elements):
        """The address of a number of elements, at the start of a line."""
        need = elements * self.like.itemsize + LINE_BYTES
        if elements and self.space.nbytes < need:
            self.space = np.empty(max(need, HUGE_BYTES), np.uint8)
        address = self.space.ctypes.data
        return address + -address % LINE_BYTES

    def complete(self, words):
        """Starts the threads that were never started or have ended."""
        if self._words[ALIVE * LINE] >= len(self.threads):
            return
        for number, thread in enumerate(self.threads):
            if thread is None or not thread.is_alive():
                task = (self, number + 1, (0,) * words)
                self.threads[number] = threading.Thread(target=_serve, args=task, name="kernel", daemon=True)
                try:
                    self.threads[number].start()
                    self._caller_core = -1
                except RuntimeError:  # the system allows no more; the others do the work
                    self.threads[number] = None
                    return


def _serve(crew, member, words):
    _take_part(crew.address, member, crew.like, words)
    # No call came for long: the last thread to leave frees the crew and its space, unless a call arrives now.
    if crew.is_empty():
        with contextlib.suppress(ValueError):
            _idle[len(crew.threads) + 1, crew.like.dtype].remove(crew)


#: Crews without a call, by their size and the dtype that they work on.
_idle = collections.defaultdict(list)
# A forked child has none of its parent's threads.
os.register_at_fork(after_in_child=_idle.clear)


def run_together(threads, dtype, words, elements=0):
    """Works on one call with a number of threads, the caller among them.

    Args:
        threads: How many work.
        dtype: Of the arrays worked on.
        words: Whole numbers that `work` reads by `word`: addresses of arrays, dims and the like.
        elements: Of the dtype; the address of that much space is one more word, the last.
    """
    crews = _idle[threads, dtype]
    try:
        crew = crews.pop()
    except IndexError:
        crew = Crew(threads, dtype)
    words = (*words, crew.reserve(elements))
    if TEAM is not None and 1 < threads <= TEAM[1].value:
        crew.borrow(words)
    else:
        if _take_part.overloads:  # the first call compiles, and works alone
            crew.complete(len(words))
            crew.keep_clear()
        _take_part(crew.address, 0, crew.like, words)
    crews.append(crew)


def address_of(array):
    """Address of an array's first element."""
    return array.__array_interface__["data"][0]


_entries = {}


def place_of(dtype):
    """The type of an address of elements."""
    return types.CPointer(from_dtype(dtype))


def entry_of(function, arguments):
    """The address of a function that is compiled apart (`APART`), for arguments of these types."""
    try:
        return _entries[function, arguments]
    except KeyError:
        function.compile(arguments)
        found = function.overloads[arguments]
        address = found.library.get_pointer_to_function(found.fndesc.llvm_cfunc_wrapper_name)
        return _entries.setdefault((function, arguments), address)
