"""The same-host transport: UNIX-socket sessions, process_vm_readv and process_vm_writev."""
