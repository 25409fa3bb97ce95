"""What SIGTERM and Ctrl-C do while the stack starts, runs and ends."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["interruptible", "patient", "termination_cancels"]

#: Asked to end by the system, and the terminal closed.
TERMINATIONS = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def termination_cancels() -> Iterator[None]:
    """Let SIGTERM and SIGHUP cancel the current task, as Ctrl-C does under asyncio.run.

    What is cancelled so ends in SystemExit with the shell's code for that signal, after every
    cleanup inside. Does nothing outside the main thread, which alone receives signals.
    """
    task = asyncio.current_task()
    if threading.current_thread() is not threading.main_thread() or task is None:
        yield
        return
    received: list[signal.Signals] = []

    def terminate(number: signal.Signals) -> None:
        received.append(number)
        task.cancel()

    loop = asyncio.get_running_loop()
    # One that is ignored (nohup) stays so.
    heeded = [number for number in TERMINATIONS if signal.getsignal(number) != signal.SIG_IGN]
    for number in heeded:
        loop.add_signal_handler(number, terminate, number)
    try:
        yield
    except asyncio.CancelledError:
        if received:
            raise SystemExit(128 + received[0]) from None
        raise
    finally:
        for number in heeded:
            loop.remove_signal_handler(number)


@contextmanager
def patient(say: Callable[[], None]) -> Iterator[None]:
    """While an orderly end is under way, answer Ctrl-C with `say` instead of tearing it apart."""
    loop = asyncio.get_running_loop()
    # Said by the event loop: a handler may run in the middle of another print.
    with _handler(lambda number, frame: loop.call_soon_threadsafe(say)):
        yield


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C end a blocking question at once; asyncio.run only cancels the task, which a
    question does not notice."""
    with _handler(signal.default_int_handler):
        yield


@contextmanager
def _handler(handle: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
