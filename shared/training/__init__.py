"""What is trained and how it is proved: data, models, parity, checkpoints, sharded and simulated parts."""
