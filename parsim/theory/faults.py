"""What faults cost, in closed form: time that passes before somebody gives up, and GPUs that wait meanwhile."""

from __future__ import annotations


def retry_timer(timeout: int = 20) -> float:
    """4.096 us x 2^timeout: how long a queue pair waits for an acknowledgement [s] (InfiniBand specification 9.7.6.1.3).

    `timeout` is NCCL_IB_TIMEOUT: 20 in NVIDIA/nccl 2.30 (src/transport/net_ib), 18 in 2.19. Hardware may take up to four times as long.

    >>> round(retry_timer(), 6)
    4.294967
    >>> round(retry_timer(18), 3)
    1.074
    """
    return 4.096e-6 * 2.0**timeout


def give_up_time(timeout: int = 20, retries: int = 7) -> float:
    """Time of all retries [s]; a queue pair that has used them up is an error, and the job of NCCL ends with it.

    >>> round(give_up_time(), 6)
    30.064771
    """
    return retries * retry_timer(timeout)


def slowed_end(size: float, bandwidth: float, share: float, begin: float, end: float = float("inf")) -> float:
    """When `size` bytes have passed a link that carries `bandwidth` [B/s], and `share` of it from `begin` to `end` [s].

    >>> [round(1e3 * slowed_end(1.5e9, 1e11, share, 6e-3, end), 9) for share, end in ((0.5, 1.0), (0.5, 18e-3), (0.0, 16e-3))]
    [24.0, 21.0, 25.0]
    """
    alone = size / bandwidth
    if alone <= begin:
        return alone
    meanwhile = share * (end - begin) if share else 0.0
    return begin + (alone - begin) / share if begin + meanwhile > alone else alone + (end - begin) - meanwhile


def respread_slowdown(nics: int, lost: int = 1) -> float:
    """How many times as long what leaves a machine takes whose other NICs share the work of lost ones.

    >>> round(respread_slowdown(8), 6)
    1.142857
    """
    return nics / (nics - lost)


def neighbour_slowdown() -> float:
    """The same where one other NIC does the work of the lost one: that one has twice as much to do, and all wait for it."""
    return 2.0


def waiting_gpu_hours(devices: int, seconds: float) -> float:
    """Time of all GPUs of a job that stands still [h]: a hang costs the time of its watchdog (PyTorch's for NCCL: 600 s).

    >>> round(waiting_gpu_hours(16_384, 600), 2)
    2730.67
    """
    return devices * seconds / 3600


def idle_devices(devices: int, slowness: float) -> float:
    """How many of the GPUs of a synchronous job do nothing on average because one takes `slowness` times as long as they do.

    >>> round(idle_devices(16_384, 1.10), 2)
    1489.45
    """
    return devices * (slowness - 1.0) / slowness


def straggler_cost(devices: int, slowness: float, price: float) -> float:
    """What those cost per hour, of GPUs that cost `price` an hour each.

    >>> round(straggler_cost(16_384, 1.10, 2.0), 2)
    2978.91
    """
    return idle_devices(devices, slowness) * price
