"""How the threads of a step share its work.

A step is a fixed row of phases. Threads claim the tasks of a phase one by one from a counter in shared memory, and go
on when all its tasks are done. They wait for work, never for each other: a thread that the operating system has put
aside holds nobody up unless it sleeps in the middle of a task, and when it comes back it finds the phases closed.
"""

from numba import types

from tokenline.models.cpu.simd import atomic_add, atomic_load, compare_and_set, kernel, spin_pause

_sched_yield = types.ExternalFunction("sched_yield", types.int32())


@kernel
def claim(memory, phase, tasks):  # type: ignore[no-untyped-def]
    """The number of a task of this phase that is now the caller's to do; -1: none is left."""
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
            _sched_yield()  # somebody else may need this core to get done
