"""Confine a process to the files it needs, so that a visitor's data cannot reach others' files.

The process keeps its libraries, the compute devices, the network, and a temporary folder of its
own, which is also its home. Of the app's environment it gets only the variables listed here: no
token, key or address of anybody else. The kernel enforces access to files by `landlock`.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from glob import glob
from pathlib import Path

from finetune.environment import caches, devices, landlock, project
from finetune.environment.landlock import Access

_ENTERED = "FINETUNE_CONFINED"  # variable that is set in a confined process
_NAMES = {
    "PATH", "LANG", "LANGUAGE", "TZ", "USER", "LOGNAME", "LD_LIBRARY_PATH", "LD_PRELOAD",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
    "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "HF_ENDPOINT", "HF_DATASETS_OFFLINE",
    "FINETUNE_VISITORS", "FINETUNE_ANY_CHECKPOINT", "SPACE_ID",
}  # fmt: skip
_PREFIXES = (
    "LC_", "PYTHON", "FINETUNE_MAX_", "HF_HUB_", "HF_XET_", "TRANSFORMERS_", "TOKENIZERS_",
    "ACCELERATE_", "TORCH", "PYTORCH_", "TRITON_", "ARROW_", "MALLOC_",
    "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "DNNL_", "ONEDNN_", "NCCL_", "GLOO_",
    "CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_VISIBLE_", "NVIDIA_TF32_", "HIP_", "ROCR_", "HSA_",
)  # fmt: skip
_SYSTEM = (
    "/bin", "/sbin", "/lib*", "/usr/bin", "/usr/sbin", "/usr/lib*", "/usr/share", "/usr/include",
    "/usr/local/bin", "/usr/local/lib*", "/usr/local/share", "/usr/local/cuda*",
    "/usr/local/nvidia", "/opt/nvidia", "/opt/rocm*", "/opt/amdgpu", "/opt/intel", "/nix/store",
    "/sys",
)  # fmt: skip
_CONFIGURATION = (
    "resolv.conf", "hosts", "host.conf", "nsswitch.conf", "gai.conf", "services", "protocols",
    "passwd", "group", "localtime", "timezone", "os-release", "mime.types", "ld.so.*", "nccl.conf",
    "ssl/certs", "ssl/openssl.cnf", "pki/tls/certs", "pki/tls/cert.pem", "pki/ca-trust",
    "ca-certificates*", "crypto-policies", "OpenCL", "python3*",
)  # fmt: skip
_OF_KERNEL = (  # no folders of other processes
    "self", "cpuinfo", "meminfo", "stat", "vmstat", "version", "uptime", "loadavg", "filesystems",
    "devices", "modules", "sys", "driver",
)  # fmt: skip
_DEVICES = (
    "null", "zero", "full", "random", "urandom", "nvidia*", "dri", "kfd", "dxg", "infiniband",
)  # fmt: skip


@dataclass(frozen=True)
class Confinement:
    """The files that a process may use, besides those that its libraries need."""

    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()  # files, or folders in which files may be created
    temporary: str = ""  # its own folder

    def __or__(self, other: Confinement) -> Confinement:
        """Union of both; the temporary folder is the other's if it has one."""
        return Confinement(
            self.reads + other.reads, self.writes + other.writes, other.temporary or self.temporary
        )

    def to_json(self) -> str:
        return json.dumps([self.reads, self.writes, self.temporary])

    @classmethod
    def from_json(cls, text: str) -> Confinement:
        reads, writes, temporary = json.loads(text)
        return cls(tuple(reads), tuple(writes), temporary)

    def prepare(self) -> dict[str, str]:
        """Fill the temporary folder for a process that will enter it. Returns variables that the
        process needs besides `visible_environment`."""
        home, measured = Path(self.temporary), devices.measurements_file().parent
        modules, caching = home / "modules", home / ".cache" / "finetune"
        for folder in (modules, caching):
            folder.mkdir(parents=True)
        # Python lists the folder in which it finds this project; that of the app may hold runs.
        (modules / "finetune").symlink_to(project.ROOT / "finetune")
        with contextlib.suppress(OSError):  # a machine without a home
            measured.mkdir(parents=True, exist_ok=True)
            (caching / measured.name).symlink_to(measured)
        paths = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
        return {
            "HOME": str(home),
            "TMPDIR": str(home),
            "HF_HOME": str(home / "huggingface"),  # has no token
            "HF_HUB_CACHE": str(hub_cache()),
            "HF_XET_CACHE": str(home / "xet"),
            "HF_HUB_DISABLE_SYMLINKS": "1",
            "PYTHONPATH": os.pathsep.join([str(modules), *_without_secrets(paths)]),
            # Threads that libraries start when they are imported would not be confined.
            "OPENBLAS_NUM_THREADS": "1",
            "JE_ARROW_MALLOC_CONF": "background_thread:false",
        }

    def enter(self) -> None:
        """Confine this process and its children, irrevocably. Does nothing if the kernel has no
        Landlock. OSError if it cannot be confined, for example because it has several threads."""
        if not landlock.abi():
            return
        landlock.restrict(
            {
                Access.READ: [*_libraries(), *self.reads],
                Access.WRITE: [devices.measurements_file().parent, *self.writes],
                Access.OWN: [self.temporary] if self.temporary else [],
                Access.DEVICE: _existing("/dev", _DEVICES),
                Access.UNLISTED: ["/dev/shm"],
            }
        )
        os.environ[_ENTERED] = "1"


def is_entered() -> bool:
    """True if this process, and so each of its children, is confined."""
    return _ENTERED in os.environ


def of_children() -> Confinement:
    """The confinement that lets child processes read about themselves in `/proc`. They see the
    command lines of other processes; memory and environment are closed to all but root, who gets
    nothing here."""
    return Confinement(reads=("/proc",) if os.geteuid() else ())


@contextlib.contextmanager
def with_temporary_folder(confinement: Confinement) -> Iterator[Confinement]:
    """Yield the confinement with a temporary folder, which is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="finetune-child-") as folder:
        yield confinement | Confinement(temporary=folder)


def limit_memory(size: int = 0) -> None:
    """Let this process allocate so many bytes at most, and write no core dumps; if memory is short,
    the kernel ends it before others. By default three quarters of what the machine has."""
    size = size or 3 * _machine_memory() // 4
    with contextlib.suppress(ValueError, OSError):  # if the system has stricter limits
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (size, size))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _machine_memory() -> int:
    """Bytes of the machine's memory, or of its container's if those are fewer."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # "max"
            sizes.append(int(Path("/sys/fs/cgroup", name).read_text()))
    return min(sizes)


def visible_environment() -> dict[str, str]:
    """The variables of this process that a confined process gets, except for paths of its own."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.upper() in _NAMES or name.startswith(_PREFIXES)
    }


def hub_cache() -> Path:
    """The folder of the Hub's cache."""
    home = os.environ.get("HF_HOME") or caches.user_cache() / "huggingface"
    return Path(os.path.abspath(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub"))


def hide_process() -> None:
    """Hide this process's memory and environment from its user's others; write no core dumps."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE


def describe() -> str:
    """Describe what confines visitors' workers here, for whoever starts the app."""
    abi = landlock.abi()
    if not abi:
        return (
            "Visitors' workers are NOT confined: this kernel has no Landlock, or it is forbidden "
            "here. finetune/ui/README.md says what they can read."
        )
    scoped = abi >= landlock.SCOPES_SINCE
    return f"Visitors' workers are confined by Landlock (ABI {abi}{'' if scoped else ': files'})"


def _libraries() -> list[str]:
    """The files of Python, its packages, this project, the system and the kernel."""
    prefixes = {sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix}
    parts = ("bin", "lib", "lib32", "lib64", "share", "include", "pyvenv.cfg")
    own = [os.path.join(prefix, part) for prefix in prefixes for part in parts]
    own += [path for name, path in sysconfig.get_paths().items() if name not in ("data", "scripts")]
    own += [str(project.ROOT / part) for part in ("finetune", "assets", "requirements.txt")]
    libraries = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    names = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
    certificates = [os.environ.get(name, "") for name in names]
    system = [path for pattern in _SYSTEM for path in glob(pattern)]
    return [
        *own, *_without_secrets(filter(os.path.exists, sys.path)),
        *filter(None, libraries + certificates), *system,
        *_existing("/etc", _CONFIGURATION), *_existing("/proc", _OF_KERNEL),
    ]  # fmt: skip


def _without_secrets(folders: Iterable[str]) -> list[str]:
    """Remove module folders that contain this project, its runs or a home."""
    held = [Path(path).resolve() for path in (project.ROOT, os.path.expanduser("~"), os.getcwd())]
    found = (Path(folder).resolve() for folder in folders)
    return [
        str(folder) for folder in found if not any(folder in (path, *path.parents) for path in held)
    ]


def _existing(folder: str, patterns: tuple[str, ...]) -> list[str]:
    return [path for pattern in patterns for path in glob(f"{folder}/{pattern}")]
