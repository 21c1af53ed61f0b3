"""NVIDIA's collective communication library: which algorithm and protocol it picks, and how long a collective takes.

A pure model: everything it needs to know about the machines comes in as :class:`parsim.hardware.nccl.inputs.Inputs`.
`parsim.hardware.nccl.cost` puts it together with the links of a cluster.
"""
