"""Another process's memory on this host: who it is, whether it may be reached, and the calls that move bytes.

A pid names a process only until it is reaped, and its memory only until it calls exec. So whom we talk about is an
Identity, and what bytes are moved with is an AddressSpace, which holds a descriptor of /proc/<pid>/mem: the kernel ties
that to the address space it was opened for, and it reads as empty once that is gone.
"""

import ctypes
import errno
import os
from dataclasses import dataclass
from pathlib import Path

USER_ADDRESSES = 1 << 56
"""No user address of a 64-bit kernel lies above; the kernel itself is the judge of what lies below."""

_YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
_PR_SET_PTRACER = 0x59616D61
_MEMBARRIER = {"x86_64": 324, "aarch64": 283}
_GLOBAL_EXPEDITED = 1 << 1
_REGISTER_GLOBAL_EXPEDITED = 1 << 2


class _Iovec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


_libc = ctypes.CDLL(None, use_errno=True)
for _call in (_libc.process_vm_readv, _libc.process_vm_writev):
    _call.restype = ctypes.c_ssize_t
    _call.argtypes = (
        ctypes.c_int,
        ctypes.POINTER(_Iovec),
        ctypes.c_ulong,
        ctypes.POINTER(_Iovec),
        ctypes.c_ulong,
        ctypes.c_ulong,
    )
for _call in (_libc.pread64, _libc.pwrite64):
    _call.restype = ctypes.c_ssize_t
    _call.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64)
_libc.prctl.restype = ctypes.c_int
_libc.prctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong)
_libc.syscall.restype = ctypes.c_long


@dataclass(frozen=True, slots=True)
class Identity:
    """One program in one process. `start` is its start time in clock ticks after boot; `image` tells the address space
    from the one that an exec makes (a digest of where the kernel put code, heap and stack), 0 when that is hidden
    from us, and then the memory is out of reach too."""

    pid: int
    start: int
    image: int


def identify(pid: int) -> Identity:
    """Who has this pid now. Touches no memory of the process, so it cannot be made to wait. Raises ProcessLookupError,
    OSError where /proc is missing."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except FileNotFoundError:
        raise ProcessLookupError(errno.ESRCH, f"no process {pid}") from None
    # The name in parentheses may hold anything; the third field comes after the last of them. Fields as in proc(5).
    fields = [int(word) for word in text[text.rindex(b")") + 4 :].split()]
    start_code, start_stack, start_data, start_brk, env_start = (fields[number - 4] for number in (26, 28, 45, 47, 50))
    image = 0
    if start_stack:
        for word in (start_code, start_stack, start_data, start_brk, env_start):
            image = (image ^ word) * 0x9E3779B97F4A7C15 % (1 << 64)
    return Identity(pid, fields[22 - 4], image)


def check_access(pid: int) -> None:
    """Raises PermissionError when the kernel does not let this process reach `pid`'s memory, ProcessLookupError.

    Opening /proc/<pid>/mem asks what process_vm_readv asks (ptrace's attach check) and touches no memory: reading even
    a byte could wait for ever when the memory lies on a file system that the client serves itself.
    """
    os.close(_open_memory(pid, os.O_RDONLY))


def why_not(pid: int, uid: int) -> str:
    """The probable reason for a PermissionError of `check_access`, and what would change it."""
    what = f"the kernel does not let the gateway (uid {os.geteuid()}) reach the memory of process {pid} (uid {uid}): "
    if uid != os.geteuid():
        return what + "run both as one user, or give the gateway CAP_SYS_PTRACE"
    scope = ptrace_scope()
    if scope == 1:
        return what + "kernel.yama.ptrace_scope is 1 and the process has not named the gateway with PR_SET_PTRACER"
    if scope >= 2:
        instead = ", or give the gateway CAP_SYS_PTRACE" if scope == 2 else ""
        return what + f"kernel.yama.ptrace_scope is {scope}; set it to 1 or 0{instead}"
    return what + "the process is not dumpable or has more rights than the gateway; run both alike"


def ptrace_scope() -> int:
    """Yama's restriction of attaching, 0 where there is none."""
    try:
        return int(_YAMA.read_text())
    except (OSError, ValueError):
        return 0


def allow_tracer(pid: int) -> None:
    """Let process `pid` and its descendants reach this process where Yama restricts that; no effect elsewhere."""
    # EINVAL where the kernel has no Yama, and for a pid that is gone: then the server's own check tells.
    _libc.prctl(_PR_SET_PTRACER, pid, 0, 0, 0)


def obstacle() -> str:
    """What keeps this process from reaching any other's memory; "" when nothing does."""
    if not _calls_work():
        return "the gateway may not use process_vm_readv (a seccomp filter?)"
    # The /proc of another pid namespace has other processes under the same numbers.
    try:
        status = Path("/proc/self/status").read_text()
    except OSError as error:
        return f"the gateway cannot read /proc: {error.strerror}"
    numbers = next((line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")), [])
    return "" if numbers == [str(os.getpid())] else "/proc is that of another pid namespace; mount the gateway's own"


def _calls_work() -> bool:
    here, there = ctypes.create_string_buffer(b"x", 1), ctypes.create_string_buffer(1)
    try:
        return _move(_libc.process_vm_readv, os.getpid(), ctypes.addressof(there), ctypes.addressof(here), 1) == 1
    except OSError:
        return False


def is_mapped(address: int) -> bool:
    """Whether this process can read its own byte at `address`; True where it cannot find out."""
    into = ctypes.create_string_buffer(1)
    try:
        return _move(_libc.process_vm_readv, os.getpid(), ctypes.addressof(into), address, 1) == 1
    except OSError as error:
        return error.errno != errno.EFAULT


def join_barrier() -> None:
    """Make this process one that `barrier` of another reaches."""
    _membarrier(_REGISTER_GLOBAL_EXPEDITED)


def barrier() -> None:
    """A full memory barrier on every thread of every process that called `join_barrier`, and on this one.

    The expensive half of an asymmetric fence: readers announce what they use with a plain store, and the writer, who
    changes something once in a while, pays for the order. Source: membarrier(2).
    """
    _membarrier(_GLOBAL_EXPEDITED)


def _membarrier(command: int) -> None:
    number = _MEMBARRIER.get(os.uname().machine)
    if number is not None:
        _libc.syscall(ctypes.c_long(number), ctypes.c_int(command), ctypes.c_uint(0), ctypes.c_int(0))


class AddressSpace:
    """The memory of one program. Any thread; the calls block and release the GIL.

    For a process of our own user the bytes move with process_vm_readv and process_vm_writev, which name it by its pid,
    after a look whether the address space is still there. For another user's, whom we reach by CAP_SYS_PTRACE, they go
    through the descriptor, a third slower, so that an exec of a set-user-ID program between look and call gains
    nothing.
    """

    def __init__(self, identity: Identity, uid: int) -> None:
        """Raises ProcessLookupError when the process is another by now, PermissionError."""
        self._pid = identity.pid
        self._by_descriptor = uid != os.getuid() or uid != os.geteuid()
        self._memory = _open_memory(identity.pid, os.O_RDWR if self._by_descriptor else os.O_RDONLY)
        try:
            # In this order: an address space that is still there now is the one that was opened.
            if not identity.image or identify(identity.pid) != identity:
                raise ProcessLookupError(errno.ESRCH, f"process {identity.pid} is not the one that was registered")
        except BaseException:
            self.close()
            raise

    def read(self, remote: int, local: int, length: int) -> int:
        """Bytes moved from their address `remote` to our address `local`: fewer than `length` when a page in between
        cannot be read. Raises OSError: ESRCH (process gone), EPERM, EFAULT (no byte could be moved)."""
        if self._by_descriptor:
            return self._through(_libc.pread64, remote, local, length)
        self._look(remote)
        return _move(_libc.process_vm_readv, self._pid, local, remote, length)

    def write(self, remote: int, local: int, length: int) -> int:
        """As `read`, the other way."""
        if self._by_descriptor:
            return self._through(_libc.pwrite64, remote, local, length)
        self._look(remote)
        return _move(_libc.process_vm_writev, self._pid, local, remote, length)

    def close(self) -> None:
        """No other thread uses it any more."""
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1

    def _look(self, remote: int) -> None:
        try:
            if os.pread(self._memory, 1, remote):
                return
        except OSError:
            return  # Not readable there, but there: the call will say so.
        raise ProcessLookupError(errno.ESRCH, f"process {self._pid} is gone")

    def _through(self, call: "ctypes._NamedFuncPointer", remote: int, local: int, length: int) -> int:
        count = int(call(self._memory, local, length, remote))
        if count < 0:
            number = ctypes.get_errno()
            raise OSError(errno.EFAULT if number == errno.EIO else number, os.strerror(number))
        if count == 0:
            raise ProcessLookupError(errno.ESRCH, f"process {self._pid} is gone")
        return count


def _open_memory(pid: int, flags: int) -> int:
    try:
        return os.open(f"/proc/{pid}/mem", flags | os.O_CLOEXEC)
    except FileNotFoundError:
        raise ProcessLookupError(errno.ESRCH, f"no process {pid}") from None


def _move(call: "ctypes._NamedFuncPointer", pid: int, local: int, remote: int, length: int) -> int:
    count = int(call(pid, _Iovec(local, length), 1, _Iovec(remote, length), 1, 0))
    if count < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return count
