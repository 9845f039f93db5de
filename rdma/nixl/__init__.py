"""What an operator of vLLM and LMCache needs around NIXL's OBJ plugin: its configuration, and whether it would load."""
