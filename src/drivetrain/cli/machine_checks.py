"""What a machine offers to a run: versions, devices, threads, network, disk. Each check asks one door."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

from drivetrain import __version__
from drivetrain.base.errors import DrivetrainError
from drivetrain.cli.finding import Finding
from drivetrain.cluster.read_cluster import read_cluster

_EXTRAS = ("jsonargparse", "matplotlib", "safetensors", "tensorboard")
_PREFIXES = ("NCCL_", "GLOO_", "TORCH_", "OMP_", "MKL_", "CUDA_", "MASTER_", "SLURM_")
_SIGNS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "TP_SOCKET_IFNAME")
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_GB = 1e9


def check_versions() -> Iterable[Finding]:
    """drivetrain, Python, torch, and which extras are there."""
    yield Finding("versions", "drivetrain", __version__)
    yield Finding("versions", "Python", f"{platform.python_version()} on {platform.platform()}")
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    yield Finding("versions", "torch", f"{torch.__version__} ({build})")
    for name in ("numpy", *_EXTRAS):
        try:
            yield Finding("versions", name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Finding("versions", name, "not installed")


def check_devices() -> Iterable[Finding]:
    """GPUs with their memory; a build for them without any is said."""
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            yield _gpu(index)
    elif torch.version.cuda:
        yield Finding(
            "devices", "GPU", "none, although torch is built for CUDA", "look",
            "Is there a driver, and does CUDA_VISIBLE_DEVICES name a device?",
        )  # fmt: skip
    elif torch.backends.mps.is_available():
        yield Finding("devices", "MPS", "one")
    else:
        yield Finding("devices", "GPU", "none: runs use the CPU")


def _gpu(index: int) -> Finding:
    what = torch.cuda.get_device_properties(index)
    free, total = torch.cuda.mem_get_info(index)
    text = f"{what.name}, {free / _GB:.1f} of {total / _GB:.1f} GB free, capability {what.major}.{what.minor}"
    try:
        torch.ones(8, device=f"cuda:{index}").sum().item()
    except RuntimeError as error:
        return Finding(
            "devices", f"GPU {index}", f"{text}; {str(error).splitlines()[0]}", "broken", "Look at nvidia-smi."
        )
    if free < total / 10:
        return Finding("devices", f"GPU {index}", text, "look", "Something else uses its memory.")
    return Finding("devices", f"GPU {index}", text)


def check_threads(
    env: Mapping[str, str], *, num_cores: int, cgroup: Path = Path("/sys/fs/cgroup")
) -> Iterable[Finding]:
    """Cores, threads and shared memory."""
    yield Finding("threads", "cores", f"{num_cores} that this process may use")
    limit = _cpu_limit(cgroup)
    if limit is not None and limit < num_cores:
        yield Finding(
            "threads", "CPU limit", f"{limit:g} cores, of {num_cores} that are seen", "look",
            f"Set OMP_NUM_THREADS={max(1, int(limit))}, and no more data workers than that.",
        )  # fmt: skip
    threads = torch.get_num_threads()
    told = f"OMP_NUM_THREADS={env['OMP_NUM_THREADS']}" if "OMP_NUM_THREADS" in env else "OMP_NUM_THREADS is not set"
    if threads > num_cores:
        yield Finding(
            "threads", "torch", f"{threads} threads ({told})", "look", f"Use {num_cores} or less for one rank."
        )
    else:
        yield Finding("threads", "torch", f"{threads} threads ({told})")
    shared = Path("/dev/shm")
    if shared.is_dir():
        free = shutil.disk_usage(shared).free
        advice = "Data workers pass batches through it: give the container more (--shm-size), or use num_workers=0."
        is_small = free < 64e6
        yield Finding(
            "threads", "/dev/shm", f"{free / _GB:.2f} GB free", "look" if is_small else "ok", advice * is_small
        )


def _cpu_limit(cgroup: Path) -> float | None:
    """Cores by the quota of a container; `None` without one."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def check_network(env: Mapping[str, str]) -> Iterable[Finding]:
    """Interfaces, the name of this machine, and variables that decide how ranks find each other."""
    names = [name for _, name in socket.if_nameindex()]
    for name in names:
        yield Finding("network", name, _interface(name))
    for variable in _INTERFACES:
        # NCCL takes prefixes, and ^ for "not these".
        wanted = [one.lstrip("=^") for one in env.get(variable, "").split(",") if one]
        unknown = [one for one in wanted if not any(name.startswith(one) for name in names)]
        if unknown:
            yield Finding(
                "network", variable, f"{env[variable]}: there is no {', '.join(unknown)}", "broken",
                f"Use one of {', '.join(names)}, or unset it.",
            )  # fmt: skip
    host = socket.gethostname()
    try:
        address = socket.gethostbyname(host)
        note = ": ranks on other machines need GLOO_SOCKET_IFNAME" if address.startswith("127.") else ""
        yield Finding("network", "host name", f"{host} is {address}{note}")
    except OSError:
        yield Finding(
            "network", "host name", f"{host} has no address", "look",
            "Runs on several machines may not find it: set MASTER_ADDR or GLOO_SOCKET_IFNAME.",
        )  # fmt: skip
    try:
        cluster = read_cluster(env)
        who = (
            f"rank {cluster.rank} of {cluster.world_size}, by {cluster.launched_by}" if cluster.is_launched else "none"
        )
        yield Finding("network", "launcher", who)
    except DrivetrainError as error:
        yield Finding("network", "launcher", error.what, "broken", error.do)
    told = [f"{name}={value}" for name, value in sorted(env.items()) if name.startswith(_PREFIXES) or name in _SIGNS]
    if told:
        yield Finding("network", "variables", ", ".join(told))


def _interface(name: str) -> str:
    folder = Path("/sys/class/net") / name
    parts = [address] if (address := _address(name)) else ["no IPv4 address"]
    for file, text in (("operstate", "{}"), ("speed", "{} Mbit/s"), ("mtu", "MTU {}")):
        try:
            value = (folder / file).read_text().strip()
        except OSError:
            continue
        if value and value not in ("unknown", "-1"):
            parts.append(text.format(value))
    return ", ".join(parts)


def _address(name: str) -> str | None:
    if sys.platform != "linux":
        return None
    import fcntl
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            request = struct.pack("256s", name.encode()[:15])
            return socket.inet_ntoa(fcntl.ioctl(asked.fileno(), 0x8915, request)[20:24])  # SIOCGIFADDR
        except OSError:
            return None


def check_disk(folder: Path, *, size_bytes: int = 64_000_000) -> Iterable[Finding]:
    """How fast, and whether at all, checkpoints can be written to a folder."""
    name = str(folder)
    try:
        seconds, sync_s = _write(folder, size_bytes)
    except OSError as error:
        yield Finding("disk", name, f"cannot be written: {error.strerror}", "broken", "Give another --folder.")
        return
    rate = size_bytes / 1e6 / seconds
    text = f"{rate:.0f} MB/s with {size_bytes / 1e6:.0f} MB that are synced; a small sync takes {sync_s * 1e3:.1f} ms"
    if rate < 20:
        yield Finding("disk", name, text, "look", "Save less often, or to another disk.")
    else:
        yield Finding("disk", name, text)
    usage = shutil.disk_usage(folder)
    is_full = usage.free < max(1e9, 0.02 * usage.total)
    text = f"{usage.free / _GB:.1f} of {usage.total / _GB:.1f} GB"
    yield Finding("disk", "free", text, "look" if is_full else "ok", "Make room: a save may fail." * is_full)


def _write(folder: Path, size_bytes: int) -> tuple[float, float]:
    data = os.urandom(1_000_000)
    with tempfile.TemporaryFile(dir=folder) as file:
        begin = time.perf_counter()
        for _ in range(max(1, size_bytes // len(data))):
            file.write(data)
        file.flush()
        os.fsync(file.fileno())
        end = time.perf_counter()
        file.write(b"x")
        file.flush()
        os.fsync(file.fileno())
        return end - begin, time.perf_counter() - end
