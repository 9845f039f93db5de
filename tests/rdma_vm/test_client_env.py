"""`s3verbs client env` where there are RoCE devices: the engine's own word, and the stock NIXL wheel's loader."""

import json
from pathlib import Path

from tests.e2e import environments
from tests.integration.endpoint import ROOT, run
from tests.rdma_vm.gateway import Gateway

LIBRARY = ROOT / "build" / "client" / "lib"


def env(*arguments: str, **variables: str) -> tuple[int, str]:
    python = environments.python_of("nixl-accelerated")
    result = run("client", "env", "--library", str(LIBRARY), "--nixl", str(python), *arguments, env=variables)
    return result.returncode, result.stderr


def test_a_soft_roce_device_serves_host_memory_by_rc(gateway: Gateway) -> None:
    code, said = env("--endpoint", f"http://127.0.0.1:{gateway.port}", S3VERBS_RDMA_DEVICES="rxe1")
    assert code == 0, said
    assert "ok       engine: host memory goes by rc from " in said
    assert "ok       rxe1 port 1 is used: " in said
    assert "rxe0 port 1 is used" not in said
    assert "its OBJ plugin loads and takes " in said


def test_dc_and_another_machines_addresses_are_refused_in_the_engines_words(tmp_path: Path) -> None:
    path = tmp_path / "cufile.json"
    path.write_text("// of another node\n" + json.dumps({"properties": {"rdma_dev_addr_list": ["192.0.2.1"]}}))
    code, said = env(S3VERBS_TRANSPORT="dc", CUFILE_ENV_PATH_JSON=str(path))
    assert code == 1
    assert "problem  engine: no transport: verbs: " in said
    assert f"problem  {path}: rdma_dev_addr_list has 192.0.2.1, which no RDMA device here has" in said
