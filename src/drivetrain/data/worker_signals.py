"""A loader's worker works on while its rank does, whatever signals a scheduler sends to all processes of a job."""

from __future__ import annotations

import os
import signal
import threading


def leave_signals_to_rank() -> None:
    """From here on SIGTERM, SIGINT and SIGUSR1 do not end this worker; SIGTERM by its own rank still does.

    A rank that was told to end finishes its step, and needs batches for it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if signal.getsignal(signal.SIGUSR1) is not None:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    if not hasattr(signal, "sigwaitinfo"):  # macOS
        return
    # Only who waits for a signal is told who sent it. Threads that start later have it blocked, too.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=_end_for, args=(os.getppid(),), daemon=True).start()


def _end_for(rank_pid: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != rank_pid:
        pass
    os._exit(0)
