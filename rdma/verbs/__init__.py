"""RoCE verbs: reliable connections on any device, dynamic connections on mlx5."""
