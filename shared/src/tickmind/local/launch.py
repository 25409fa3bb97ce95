"""Become a given command, bound to the life of the process that asked for it.

Run as a script, never imported: `python -I -S launch.py PARENT_PID DEATH_SIGNAL UID GID COMMAND...`
(UID and GID -1: stay who we are). It drops privileges, asks Linux for a signal at the parent's
death and replaces itself. A `preexec_fn` would do the same inside a fork of a threaded process,
which may deadlock; this costs some 20 ms instead. Standard library only, so that it runs without
site-packages and before the new user has to be able to read them.

On systems other than Linux there is no such signal: a parent that is killed outright leaves its
children to be stopped by the next start (see `processes.stop_orphan`).
"""

import ctypes
import os
import signal
import sys

#: prctl(2): PR_SET_PDEATHSIG, from <linux/prctl.h>.
PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Replace this process by the command; exits 126 where that is not allowed, 127 if absent."""
    parent_pid, death_signal, uid, gid = (int(number) for number in arguments[:4])
    command = arguments[4:]
    libc = ctypes.CDLL(None)
    try:
        if uid >= 0:
            os.setgroups([])
            os.setgid(gid)
            os.setuid(uid)
        # After the change of user, which clears the setting (prctl(2)).
        if sys.platform == "linux":
            libc.prctl(PR_SET_PDEATHSIG, death_signal)
        if os.getppid() != parent_pid:
            # The parent died before the setting took hold.
            os.kill(os.getpid(), signal.SIGKILL)
        os.execvp(command[0], command)
    except FileNotFoundError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        sys.exit(127)
    except OSError as error:
        sys.stderr.write(f"cannot run {command[0]} as user {uid}: {error.strerror}\n")
        sys.exit(126)


if __name__ == "__main__":
    main(sys.argv[1:])
