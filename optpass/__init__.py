"""optpass: a graph-optimising `torch.compile` backend that is fast, explains itself and can be trusted."""
