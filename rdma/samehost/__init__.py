"""The same-host transport: payloads move between the gateway and a client process of one machine by system calls.

The modules, and which side uses them:

    protocol, location    what client and server agree on                       (both)
    process_memory        another process's memory: system calls, identity      (both)
    table                 who may be reached where, in memory that all server processes share
    sessions              writes the table; runs in the server's parent process
    fabric, sink          read the table and move bytes; run in the workers
    mappings, threads     what they move bytes from, and on
"""
