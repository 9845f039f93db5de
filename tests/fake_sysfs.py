"""A tree with the files of sysfs that describe RDMA devices, as kernels write them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

from s3verbs.rdma.verbs.device import gid_of

V1 = "IB/RoCE v1"
V2 = "RoCE v2"


@dataclass
class FakeSysfs:
    """Writes below `root`. Values are given without the newline that the kernel ends them with."""

    root: Path
    uverbs: int = field(default=0, init=False)

    def netdev(self, name: str, *, mtu: int = 1500, kind: str = "") -> None:
        folder = self.root / "class/net" / name
        self._write(folder / "mtu", str(mtu))
        self._write(folder / "uevent", f"DEVTYPE={kind}\nINTERFACE={name}" if kind else f"INTERFACE={name}")

    def device(self, name: str, *, driver: str = "mlx5_core", node: str = "1: CA", ports: int = 1) -> None:
        """`driver` is the name of the PCI driver, or rxe or siw."""
        folder = self.root / "class/infiniband" / name
        self._write(folder / "node_type", node)
        self._write(folder / "fw_ver", "" if driver in ("rxe", "siw") else "28.39.3560")
        if driver == "rxe":
            self._write(folder / "parent", "eth0")
        elif driver != "siw":
            target = self.root / "bus/pci/drivers" / driver
            target.mkdir(parents=True, exist_ok=True)
            (folder / "device").mkdir()
            (folder / "device/driver").symlink_to(target)
        self._write(self.root / f"class/infiniband_verbs/uverbs{self.uverbs}/ibdev", name)
        self.uverbs += 1
        for number in range(1, ports + 1):
            self.port(name, number)

    def port(
        self, device: str, number: int, *, state: str = "4: ACTIVE", layer: str = "Ethernet", gids: int = 8
    ) -> None:
        """Make or change a port; its GIDs are all zero at first."""
        folder = self._port(device, number)
        self._write(folder / "state", state)
        self._write(folder / "link_layer", layer)
        self._write(folder / "rate", "100 Gb/sec (4X EDR)")
        for index in range(gids):
            if not (folder / f"gids/{index}").exists():
                self._write(folder / f"gids/{index}", ":".join(["0000"] * 8))

    def gid(self, device: str, index: int, address: str, netdev: str, *, kind: str = V2, port: int = 1) -> None:
        """`address` is an IP address. "" for `netdev`: the kernel names none."""
        folder = self._port(device, port)
        text = gid_of(ip_address(address)).hex()
        self._write(folder / f"gids/{index}", ":".join(text[at : at + 4] for at in range(0, 32, 4)))
        self._write(folder / f"gid_attrs/types/{index}", kind)
        if netdev:
            self._write(folder / f"gid_attrs/ndevs/{index}", netdev)

    def roce(self, device: str, netdev: str, addresses: Sequence[str], *, port: int = 1, start: int = 0) -> int:
        """The GIDs of a RoCE port for these addresses, each first as v1, then as v2, as mlx5 lists them. The index
        after the last."""
        for address in addresses:
            self.gid(device, start, address, netdev, kind=V1, port=port)
            self.gid(device, start + 1, address, netdev, kind=V2, port=port)
            start += 2
        return start

    def _port(self, device: str, number: int) -> Path:
        return self.root / "class/infiniband" / device / "ports" / str(number)

    @staticmethod
    def _write(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
