"""Ctrl-C at chosen moments."""

from __future__ import annotations

import signal
import threading
import time


def interrupted_after(seconds, call):
    """Whether a real SIGINT ended a call; one that comes when the call is over is waited for and does not count."""
    main = threading.main_thread().ident
    timer = threading.Timer(seconds, signal.pthread_kill, (main, signal.SIGINT))
    try:
        timer.start()
        try:
            call()
        except KeyboardInterrupt:
            return True
        timer.cancel()
        timer.join()
        time.sleep(0.001)  # returns through the kernel, which delivers what is pending
    except KeyboardInterrupt:
        pass
    return False
