"""`s3verbs bench`: what a cache costs on the machines at hand. NIXL and numpy live in processes of their own."""
