"""Collectives on an idle, uniform fabric, and how much of them two strategies can hide."""

from __future__ import annotations

from math import ceil, log2


def send_time(size: float, bandwidth: float, latency: float = 0.0) -> float:
    """One message [s]: latency + S/B (Hockney 1994).

    >>> round(send_time(1e9, 24e9, 3.3e-6) * 1e3, 6)
    41.669967
    """
    return latency + size / bandwidth


def tcp_flow_time(
    size: float,
    bandwidth: float,
    latency: float,
    *,
    latency_factor: float = 13.01,
    bandwidth_factor: float = 0.97,
    cross_traffic: float = 0.05,
    window: float = 4_194_304.0,
) -> float:
    """One TCP flow alone on its route [s], as SimGrid's fluid model LV08 has it (Velho and Legrand, SIMUTools 2009).

    f_l latency + S / min(f_b B / (1 + x), window / (2 latency)): slow start and handshake stretch the latency, headers take a
    share of the bandwidth, acknowledgements add `cross_traffic`, and the congestion window bounds the rate. The defaults are
    SimGrid's (docs, "Configuring SimGrid": network/latency-factor, network/bandwidth-factor, network/crosstraffic,
    network/TCP-gamma). For RDMA and NVLink all of this is neutral: see `send_time`.

    >>> round(tcp_flow_time(100e3, 1e6 / 8, 10e-3), 6)
    0.996079
    """
    rate = bandwidth_factor * bandwidth / (1 + cross_traffic)
    if latency > 0:
        rate = min(rate, window / (2 * latency))
    return latency_factor * latency + size / rate


def ring_all_reduce_bytes(ranks: int, size: float) -> float:
    """Bytes that each rank sends (and receives) in a ring all-reduce of `size` bytes: 2 (n - 1)/n S (Patarasuk and Yuan 2009).

    >>> ring_all_reduce_bytes(8, 4 * 124_439_808)
    871078656.0
    """
    return 2 * (ranks - 1) / ranks * size


def ring_all_reduce_time(ranks: int, size: float, bandwidth: float, latency: float = 0.0) -> float:
    """Ring all-reduce [s]: 2 (n - 1) steps of S/n bytes, each with `latency` (Patarasuk and Yuan 2009).

    >>> round(ring_all_reduce_time(4, 1e9, 100e9, 1e-6) * 1e3, 9)
    15.006
    """
    return ring_all_reduce_bytes(ranks, size) / bandwidth + 2 * (ranks - 1) * latency


def ring_all_gather_time(ranks: int, size: float, bandwidth: float, latency: float = 0.0) -> float:
    """Ring all-gather [s]; `size` is the gathered buffer (n shards): (n - 1)/n S/B + (n - 1) latency.

    >>> round(ring_all_gather_time(8, 1e9, 240e9) * 1e3, 6)
    3.645833
    """
    return (ranks - 1) / ranks * size / bandwidth + (ranks - 1) * latency


def ring_reduce_scatter_time(ranks: int, size: float, bandwidth: float, latency: float = 0.0) -> float:
    """Ring reduce-scatter [s]; `size` is the buffer that is reduced: the time of the all-gather, run backwards."""
    return ring_all_gather_time(ranks, size, bandwidth, latency)


def chain_broadcast_time(ranks: int, size: float, bandwidth: float, chunk: float, latency: float = 0.0) -> float:
    """Broadcast through a chain in K chunks [s]: (K + n - 2)(chunk/B + latency).

    >>> round(chain_broadcast_time(4, 64 * 2**20, 25e9, 2**20) * 1e3, 8)
    2.76824064
    """
    return (ceil(size / chunk) + ranks - 2) * (chunk / bandwidth + latency)


def tree_all_reduce_time(ranks: int, size: float, bandwidth: float, latency: float = 0.0) -> float:
    """Double-binary-tree all-reduce [s]: 2 S/B + 2 ceil(log2 n) latency (Sanders, Speck, Traff 2009; NCCL ``tuning.cc``).

    Each rank is inside one tree and a leaf of the other, so it sends S up and S down at rate B.

    >>> tree_all_reduce_time(8, 1e9, 100e9, 1e-6)
    0.020006
    """
    return 2 * size / bandwidth + 2 * ceil(log2(ranks)) * latency


def all_to_all_time(ranks: int, size: float, bandwidth: float, latency: float = 0.0) -> float:
    """All-to-all on a switch that does not block [s]; `size` is a rank's send buffer: (n - 1)/n S/B + latency.

    >>> all_to_all_time(4, 1e9, 50e9)
    0.015
    """
    return (ranks - 1) / ranks * size / bandwidth + latency


def torus_all_to_all_time(longest: int, size: float, bandwidth: float) -> float:
    """All-to-all on a torus with wrap-around whose longest dimension has `longest` chips, an even number [s]; `size` as above.

    Both ways of a ring of k chips carry k^2/8 shares of S/k over every wire of `bandwidth` per direction: S k / (8 b). Dimensions work
    beside each other.

    >>> round(1e3 * torus_all_to_all_time(16, 1e9, 90e9), 2)
    22.22
    """
    return size * longest / (8 * bandwidth)


def hierarchical_all_reduce_time(nodes: int, per_node: int, size: float, inner: float, outer: float) -> float:
    """Reduce-scatter in the node, all-reduce between nodes on S/g per rank, all-gather in the node, one after the other [s].

    `inner` and `outer` are bytes per second of one rank inside and between nodes.

    >>> round(hierarchical_all_reduce_time(4, 8, 1e9, 235e9, 24e9) * 1e3, 6)
    15.259309
    """
    return 2 * ring_all_gather_time(per_node, size, inner) + ring_all_reduce_time(nodes, size / per_node, outer)


def fsdp_traffic_bytes(ranks: int, parameter_bytes: float) -> float:
    """Bytes that each rank receives per micro-batch under FSDP or ZeRO-3: 3 (n - 1)/n of the parameters (arXiv 1910.02054, §7).

    Two all-gathers (forward, backward) and a reduce-scatter; data parallelism moves 2 (n - 1)/n.

    >>> fsdp_traffic_bytes(8, 2 * 6_738_415_616)
    35376681984.0
    """
    return 3 * (ranks - 1) / ranks * parameter_bytes


def ddp_backward_time(layers: int, backward: float, all_reduce: float) -> float:
    """Backward of L equal layers with one all-reduce each, overlapped (Li et al., arXiv 2006.15704) [s].

    L tB + AR if AR <= tB (only the last is seen), else tB + L AR (only the first layer hides).

    >>> [ddp_backward_time(4, 2, ar) for ar in (1, 2, 3)]
    [9, 10, 14]
    """
    return layers * backward + all_reduce if all_reduce <= backward else backward + layers * all_reduce


def ddp_exposed_time(layers: int, backward: float, all_reduce: float) -> float:
    """The part of `ddp_backward_time` that the all-reduces add [s].

    >>> [ddp_exposed_time(4, 2, ar) for ar in (1, 2, 3)]
    [1, 2, 6]
    """
    return ddp_backward_time(layers, backward, all_reduce) - layers * backward


def fsdp_forward_time(layers: int, forward: float, gather: float) -> float:
    """Forward of L equal units, each gathered while the one before it runs (Zhao et al., arXiv 2304.11277) [s].

    g + (L - 1) max(tF, g) + tF.

    >>> [fsdp_forward_time(4, 1, g) for g in (0.5, 1, 1.5, 2.5)]
    [4.5, 5, 7.0, 11.0]
    """
    return gather + (layers - 1) * max(forward, gather) + forward


def ring_attention_bytes(ranks: int, key_value_bytes: float, *, backward: bool = False) -> float:
    """Bytes that each of c ranks sends per layer and micro-batch (Liu et al., arXiv 2310.01889): (c - 1) times its K and V.

    Backward sends K and V round again and their gradients with them: twice as much.

    >>> ring_attention_bytes(8, 16 * 2**20) / 2**20
    112.0
    """
    return (ranks - 1) * key_value_bytes * (2 if backward else 1)


def ring_attention_time(ranks: int, block: float, message: float, *, backward: bool = False) -> float:
    """One layer's attention over c ranks whose blocks take equally long, each beside a message [s].

    Forward t + (c - 1) max(t, m): the block of the last keys and values has nothing left to pass on. Backward c max(t, m):
    the last gradients travel beside the last block. Hidden while m <= t.

    >>> [ring_attention_time(4, 1.0, m) for m in (0.5, 1.0, 2.0)]
    [4.0, 4.0, 7.0]
    """
    if ranks == 1:
        return block
    return ranks * max(block, message) if backward else block + (ranks - 1) * max(block, message)


def gather_and_product_time(ranks: int, product: float, gather: float) -> float:
    """A product of tokens that t ranks gather in a ring meanwhile (Transformer Engine: split_overlap_ag) [s].

    The t pieces take G/t each, the t - 1 hops A/(t - 1): max((t - 1)/t G, A) + G/t. The product hides what takes no longer.

    >>> [gather_and_product_time(8, 100, gather) for gather in (40, 140)]
    [100.0, 152.5]
    """
    return max((ranks - 1) / ranks * product, gather) + product / ranks


def product_and_scatter_time(parts: int, product: float, scatter: float) -> float:
    """A product in S parts, each of which is reduced and scattered while the next is computed (split_overlap_rs) [s].

    G/S + (S - 1)/S max(G, R) + R/S: the longer of the two, and one part of the other.

    >>> [product_and_scatter_time(4, 100, scatter) for scatter in (40, 140)]
    [110.0, 165.0]
    """
    return (product + (parts - 1) * max(product, scatter) + scatter) / parts


def product_and_exchange_time(ranks: int, product: float, exchange: float) -> float:
    """A product whose t pieces are sent to their ranks as they are made, the own one last (PyTorch's asynchronous TP) [s].

    G/t + max((t - 1)/t G, R): `gather_and_product_time` run backwards.

    >>> product_and_exchange_time(8, 100, 40)
    100.0
    """
    return gather_and_product_time(ranks, product, exchange)
