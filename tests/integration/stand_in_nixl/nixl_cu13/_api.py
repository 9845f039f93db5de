"""What `bench.nixl_worker` calls of NIXL's bindings. Transfers are done when they are posted.

STAND_IN_FAULT makes it misbehave: `skip` moves nothing and says DONE, `fail` ends with ERR, `stall` never ends, `die`
kills the process, `plugin` has no OBJ plugin, `register` cannot register; each only on the accelerated engine when
STAND_IN_FAULT_OF is `rdma`, and transfers only after the first STAND_IN_FAULT_AFTER. Every transfer is appended to
STAND_IN_LOG, one JSON line each.
"""

import ctypes
import json
import os
import signal
import sys
from pathlib import Path

import botocore.session
from botocore.config import Config


class NixlNotFoundError(Exception):
    pass


def nixl_agent_config(backends):
    assert backends == []


class nixl_agent:  # noqa: N801 NIXL's own name
    def __init__(self, name, config):
        self.name = name
        self._keys = {}

    def create_backend(self, name, parameters):
        accelerated = parameters.get("accelerated") == "true"
        self._fault = os.environ.get("STAND_IN_FAULT", "")
        if os.environ.get("STAND_IN_FAULT_OF") == "rdma" and not accelerated:
            self._fault = ""
        if self._fault == "plugin":
            raise NixlNotFoundError("NIXL_ERR_NOT_FOUND")
        self._parameters = parameters
        if accelerated:
            print("s3verbs: samehost: memory of a test", file=sys.stderr, flush=True)
        self._s3 = botocore.session.Session().create_client(
            "s3",
            endpoint_url=parameters["endpoint_override"],
            aws_access_key_id=parameters["access_key"],
            aws_secret_access_key=parameters["secret_key"],
            region_name=parameters["region"],
            config=Config(s3={"addressing_style": "path"}),
        )

    def register_memory(self, described, kind, backends):
        if kind == "DRAM" and self._fault == "register":
            print("E1130 03:15:48.290737   16415 nixl_agent.cpp:483] no room", file=sys.stderr, flush=True)
            raise RuntimeError("NIXL_ERR_BACKEND")
        if kind == "OBJ":
            self._keys |= {number: key for _, _, number, key in described}
        return kind, described

    def deregister_memory(self, registered):
        kind, described = registered
        if kind == "OBJ":
            for _, _, number, _ in described:
                del self._keys[number]

    def get_xfer_descs(self, described, kind):
        return described

    def initialize_xfer(self, operation, local, remote, agent, backends):
        assert agent == self.name
        return operation, local, remote

    def transfer(self, handle):
        operation, local, remote = handle
        with Path(os.environ["STAND_IN_LOG"]).open("a") as log:
            keys = [self._keys[number] for _, _, number in remote]
            log.write(json.dumps({"operation": operation, "keys": keys, "parameters": self._parameters}) + "\n")
        count = len(Path(os.environ["STAND_IN_LOG"]).read_text().splitlines())
        fault = self._fault if count > int(os.environ.get("STAND_IN_FAULT_AFTER", "0")) else ""
        if fault == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault in ("fail", "stall"):
            return {"fail": "ERR", "stall": "PROC"}[fault]
        for (address, size, _), (offset, length, number) in zip(local, remote, strict=True):
            assert (offset, length) == (0, size)
            memory = (ctypes.c_char * size).from_address(address)
            place = {"Bucket": self._parameters["bucket"], "Key": self._keys[number]}
            if operation == "WRITE":
                self._s3.put_object(**place, Body=bytes(memory))
            elif fault != "skip":
                memory[:] = self._s3.get_object(**place)["Body"].read()
        return "DONE"

    def check_xfer_state(self, handle):
        return self.transfer(handle)

    def release_xfer_handle(self, handle):
        pass
