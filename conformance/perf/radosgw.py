"""Ceph's object gateway on one monitor and one BlueStore OSD, all on loopback in one folder."""

import os
import subprocess
import uuid

from conformance.perf.peers import ACCESS_KEY, SECRET_KEY, Peer, free_port, program

_INSTALL = "apt-get install --no-install-recommends radosgw ceph-mon ceph-osd"


class Radosgw(Peer):
    name = "radosgw"

    def start(self) -> None:
        for binary in ("ceph-mon", "ceph-osd", "radosgw", "radosgw-admin", "ceph-authtool", "monmaptool", "ceph"):
            program(binary, install=_INSTALL)
        fsid, monitor = str(uuid.uuid4()), f"127.0.0.1:{free_port()}"
        for name in ("mon", "osd", "run"):
            (self.folder / name).mkdir()
        (self.folder / "ceph.conf").write_text(
            f"""[global]
fsid = {fsid}
mon host = [v2:{monitor}/0]
keyring = {self.folder}/keyring
run dir = {self.folder}/run
admin socket = {self.folder}/run/$name.asok
log file = {self.folder}/$name.log
public network = 127.0.0.0/8
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd crush chooseleaf type = 0
mon allow pool size one = true
mon allow pool delete = true
ms bind ipv4 = true
[mon.a]
mon data = {self.folder}/mon
[osd.0]
osd data = {self.folder}/osd
keyring = {self.folder}/osd/keyring
osd objectstore = bluestore
bluestore block size = {30 << 30}
osd memory target = {1 << 30}
[client.rgw]
rgw frontends = beast endpoint={self.endpoint.host}:{self.endpoint.port}
rgw data = {self.folder}/run
rgw enable usage log = false
rgw enable ops log = false
"""
        )
        self._run("ceph-authtool", "--create-keyring", "keyring", "--gen-key", "-n", "mon.", "--cap", "mon", "allow *")
        for client in ("client.admin", "client.rgw"):
            capabilities = [word for daemon in ("mon", "osd") for word in ("--cap", daemon, "allow *")]
            self._run("ceph-authtool", "keyring", "--gen-key", "-n", client, *capabilities)
        self._run("monmaptool", "--create", "--fsid", fsid, "--addv", "a", f"[v2:{monitor}/0]", "monmap")
        self._run("ceph-mon", "-c", "ceph.conf", "--mkfs", "-i", "a", "--monmap", "monmap", "--keyring", "keyring")
        self.launch([program("ceph-mon", install=_INSTALL), "-c", "ceph.conf", "-f", "-i", "a"])
        osd = str(uuid.uuid4())
        self._run("ceph", "-c", "ceph.conf", "osd", "new", osd)
        self._run("ceph-authtool", "--create-keyring", "osd/keyring", "--gen-key", "-n", "osd.0")
        grants = ("mon", "allow profile osd", "osd", "allow *", "-i", "osd/keyring")
        self._run("ceph", "-c", "ceph.conf", "auth", "add", "osd.0", *grants)
        self._run("ceph-osd", "-c", "ceph.conf", "-i", "0", "--mkfs", "--osd-uuid", osd)
        self.launch([program("ceph-osd", install=_INSTALL), "-c", "ceph.conf", "-f", "-i", "0"])
        self.launch([program("radosgw", install=_INSTALL), "-c", "ceph.conf", "-f", "-n", "client.rgw"])
        self._run(
            "radosgw-admin",
            "-c",
            "ceph.conf",
            "user",
            "create",
            "--uid=bench",
            "--display-name=bench",
            f"--access-key={ACCESS_KEY}",
            f"--secret-key={SECRET_KEY}",
        )

    def _run(self, *command: str) -> None:
        result = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, timeout=120, env={**os.environ, "CEPH_ARGS": ""}
        )
        if result.returncode:
            raise RuntimeError(f"{' '.join(command)}: {result.stderr.strip()[-500:]}")
