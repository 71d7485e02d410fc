"""How the threads of a step claim its work.

A step is a fixed sequence of phases. Threads claim the tasks of a phase one by one from a counter in shared memory, and
go on when all of them are done. There is no barrier: a thread that the operating system has descheduled delays the
others only if that happened within a task, and when it runs again it finds the phases closed.
"""

from numba import types

from tokenline.models.cpu.simd import atomic_add, atomic_load, compare_and_set, kernel, spin_pause

_sched_yield = types.ExternalFunction("sched_yield", types.int32())


@kernel
def claim(memory, phase, tasks):  # type: ignore[no-untyped-def]
    """Claim a task of this phase: its number, or -1 if none is left."""
    address = memory.sync + phase * 16
    while True:
        value = atomic_load(address)
        task = value - memory.epoch
        if task >= tasks:
            return -1
        if compare_and_set(address, value, value + 1):
            return task


@kernel
def finish(memory, phase, done, tasks):  # type: ignore[no-untyped-def]
    """Report `done` tasks of this phase as done, and wait until all are."""
    address = memory.sync + phase * 16 + 8
    if done > 0:
        atomic_add(address, done)
    spins = 0
    while atomic_load(address) - memory.epoch < tasks:
        spin_pause()
        spins += 1
        if spins % 1024 == 0:
            _sched_yield()  # another thread may need this core to finish its task
