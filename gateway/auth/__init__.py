"""Who speaks and what they may do: SigV4, access keys, authorization."""
