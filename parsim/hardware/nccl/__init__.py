"""NVIDIA's collective communication library: which rings it lays, which algorithm and protocol it picks, how long a collective takes.

In the order in which the library works:

1. `wiring`: the machine's graph as the library sees it (NVIDIA/nccl src/graph/topo.cc, paths.cc).
2. `search`, `packing`: rings inside each machine (src/graph/search.cc), one `task` per question.
3. `rings`: those of all machines joined to rings of the group (src/graph/connect.cc); trees over them in `lanes` (src/graph/trees.cc).
4. `tuning`: bandwidth and latency of every algorithm and protocol (src/graph/tuning.cc), with the constants in `tables`; what it must
   know about a group is in `inputs`, without any cluster behind it, and comes from `describe`.
5. `estimate`: the choice (src/enqueue.cc) and its time, as predicted or as measured: corrections inside a machine in `profiles`, the law
   between machines in `between`.
6. `lanes`, `cost`: what the chosen algorithm asks of the links of a cluster; `p2p` for what the library does not tune.
"""
